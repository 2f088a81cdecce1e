"""GPULab's public client against the same server: a witness that the server behaves.

It is a program of its own, installed apart (PyPI: imecilabt-gpulab-cli 3.11.12, GPL-3), and
found on PATH or by GPUBED_GPULAB_CLI. gpubed never needs it.
"""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from gpubed.backends.gpulab import request
from gpubed.spec import clusterspec
from gpubed.spec.plan import plan
from support.gpulab.site import IMAGE, Site

CLI = os.environ.get("GPUBED_GPULAB_CLI") or shutil.which("gpulab-cli")
pytestmark = pytest.mark.skipif(
    CLI is None, reason="gpulab-cli is not installed: GPUBED_GPULAB_CLI names it"
)


class Public:
    """The public client as user of a site; it gets a home of its own, which it writes to."""

    def __init__(self, site, home):
        self.site, self.home = site, home

    def __call__(self, *words, rc=0, text=None):
        command = [
            CLI,
            *("--cert", str(self.site.user)),
            *("--custom-master-url", self.site.server.url),
            *("--servercert", str(self.site.authority.path)),
        ]
        done = subprocess.run(
            [*command, *words],
            env={"PATH": os.environ["PATH"], "HOME": str(self.home)},
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == rc, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout.strip()


@pytest.fixture
def site(tmp_path):
    with Site(tmp_path) as made:
        yield made


@pytest.fixture
def public(site, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    return Public(site, home)


@pytest.fixture
def definition(site, tmp_path):
    """The job that gpubed would submit."""
    (tmp_path / "job").mkdir()
    document = {"name": "gl", **site.spec(cluster=6)}
    cluster = plan(clusterspec.model().model_validate(document))
    return request.render(
        cluster,
        cluster.nodes[0],
        name="by-hand",
        labels=request.label("gl", "6f0c"),
        project_urn="urn:publicid:IDN+ilabt.imec.be+project+myproj",
        source=tmp_path / "job",
        command=["sh", "-c", "echo rank $HOROVOD_RANK; exit ${CODE:-0}"],
        environment={"GPUBED_RUN_DIR": f"{site.storage}/by-hand"},
        mark="gpubed-00",
    )


def submitted(public, definition, **environment):
    document = json.loads(json.dumps(definition))
    document["request"]["docker"]["environment"] |= environment
    return public("submit", "--project", "myproj", text=json.dumps(document))


def ended(public, id_):
    until = time.monotonic() + 20
    while public.site.service.jobs[id_].status not in ("FINISHED", "FAILED", "CANCELLED"):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_its_own_schema_accepts_what_gpubed_sends(definition):
    python = Path(CLI).resolve().parent / "python"
    code = (
        "import sys; from imecilabt.gpulab.schemas.job2 import NewJobV4; "
        "print(NewJobV4.model_validate_json(sys.stdin.read()).request.resources.gpus)"
    )
    done = subprocess.run(
        [python, "-c", code], input=json.dumps(definition).encode(), capture_output=True, check=True
    )
    assert done.stdout.strip() == b"10"


def test_it_submits_a_job_of_gpubeds_and_reads_all_about_it(public, definition):
    id_ = submitted(public, definition)
    ended(public, id_)
    assert public.site.service.jobs[id_].status == "FINISHED"
    assert id_ in public("jobs")
    assert "FINISHED" in public("jobs", id_)
    log = public("log", id_)
    assert sorted(line for line in log.splitlines() if line.startswith("rank")) == [
        f"rank {n}" for n in range(10)
    ]
    assert "gpubed-00:1/" in log
    assert "STATE CHANGED -> FINISHED" in public("debug", id_)


def test_it_sees_the_same_clusters(public):
    shown = public("clusters")
    assert "Tesla V100-SXM3-32GB" in shown
    assert "32/32" in shown


def test_it_cancels_a_job(public, definition):
    document = json.loads(json.dumps(definition))
    document["request"]["docker"] = {"image": IMAGE, "command": ["sleep", "60"]}
    id_ = public("submit", "--project", "myproj", text=json.dumps(document))
    public("cancel", id_)
    ended(public, id_)
    assert "CANCELLED" in public("jobs", id_)


def test_it_is_refused_a_foreign_project(public, definition):
    public("submit", "--project", "theirs", text=json.dumps(definition), rc=1)


def test_it_ends_with_0_for_a_job_that_failed_and_gpubed_does_not(public, definition):
    id_ = submitted(public, definition, CODE="3")
    ended(public, id_)
    assert public.site.service.jobs[id_].status == "FAILED"
    public("wait", "--wait-done", id_, rc=0)
    public.site.call("up", "gl")
    public.site.call("run", "gl", "quick", "--set", "fail=1", rc=1)
