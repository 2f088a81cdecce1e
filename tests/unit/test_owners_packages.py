"""What `plan` and `doctor` say of packages on own hosts.

The session with the host is a STAND-IN; tests/e2e/test_owners_packages.py has a real one.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpubed.cluster import doctor
from gpubed.core.paths import Project
from gpubed.nodes.ssh import CommandResult, Unreachable
from gpubed.testbeds.specification import load_plan
from support.readers import FACTS

SPEC = """
version: 1
backend: {type: static, user: me, hosts: {node: [{address: 192.0.2.7}]}}
networks: {control: {subnet: 192.0.2.0/24}}
nodes: [{count: 1, gpus: GPUS}]
recipe: RECIPE
services: {docker: {}, slurm: {users: []}, monitoring: {}}
"""


class Session:
    """STAND-IN for a session; the host answers a program with what is told."""

    def __init__(self, node, answers):
        self.node, self._answers = node, answers
        self.asked = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def run(self, command, _shell, *words, stdin, **_):
        if command.startswith("[ -e"):
            self.foreign = words
            return CommandResult(self._answers["slurm"], "", 0, 0.1)
        self.asked.append(words)
        said = self._answers["base" if "look" in words else "hardware"]
        if isinstance(said, Exception):
            raise said
        return CommandResult(json.dumps(said), "", 0, 0.1)


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A function that lets `doctor` look at a host that tells this; returns the findings."""
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))

    def look(base, facts=None, gpus=0, recipe="cpu", id_="node-0-1", slurm=""):
        paths = Project(tmp_path).cluster("own")
        paths.spec.parent.mkdir(parents=True, exist_ok=True)
        paths.spec.write_text(SPEC.replace("GPUS", str(gpus)).replace("RECIPE", recipe))
        plan = load_plan(paths.spec)
        node = SimpleNamespace(name=plan.nodes[0].name, id=id_)
        session = Session(node, {"base": base, "hardware": facts, "slurm": slurm})
        hosts = "gpubed.backends.static.testbed.StaticTestbed.hosts"
        monkeypatch.setattr(hosts, lambda *_: [session])
        look.session = session
        return doctor.owners_packages(paths, plan)

    return look


def told(age=60.0, changes=(), failed="", unfinished=()):
    role = {"role": "docker", "changes": list(changes), "failed": failed}
    return {
        "schema": "gpubed/packages/1",
        "lists_age_s": age,
        "unfinished": list(unfinished),
        "roles": [role],
    }


def test_what_a_host_would_get_is_told_until_it_is_a_node(host):
    base = told() | {"edits": ["/etc/hosts"]}
    base["roles"][0]["comes"] = ["docker.io", "runc"]
    _, *news = [finding.message for finding in host(base, id_="")]
    packages, units, files = news
    assert packages == "node-0 would get the packages docker.io, runc"
    assert "docker.service, " in units
    assert files == "node-0 has files that roles would edit: /etc/hosts"
    assert "/etc/docker/daemon.json" in json.loads(host.session.asked[-1][-1])["edits"]
    assert len(host(base)) == 1


def test_a_slurm_of_the_owners_is_refused_before_anything_changes(host):
    *_, finding = host(told(), id_="", slurm="/etc/slurm/slurm.conf\nslurmd.service\n")
    assert not finding.ok
    assert "Slurm would overwrite or stop: /etc/slurm/slurm.conf, slurmd.service" in finding.message
    group, note, *_, server = host.session.foreign
    assert (group, note) == ("researchers", "/var/lib/gpubed/slurm-database")
    assert server == "mysql.service"
    assert all(finding.ok for finding in host(told(), slurm="slurmd.service\n")), "it is a node"


GOES = {
    "package": "containerd.io",
    "says": "containerd.io 1.7.22-1 (from https://download.docker.com) would be removed",
    "refused": True,
}


def test_what_would_change_is_refused_with_the_key_that_allows_it(host):
    [finding] = host(told(changes=[GOES]))
    assert not finding.ok
    assert GOES["says"] in finding.message
    assert finding.fix == (
        "if they may change, write into cluster.yml: packages: {may_change: [containerd.io]}"
    )


def test_what_is_allowed_is_told(host):
    [finding] = host(told(changes=[{**GOES, "refused": False}]))
    assert finding.ok
    assert finding.message == f"node-0: {GOES['says']} (allowed)"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (told(), "no package of its owner changes"),
        (told(age=None), "it has no package lists, so other changes are unknown"),
        (told(age=12 * 86400.0), "its package lists are 12 days old; with newer ones more may"),
        (told(unfinished=["man-db"]), "`up` first lets dpkg finish man-db"),
        (
            told(failed="held broken packages"),
            "apt cannot predict the changes by role docker (held",
        ),
        (told(failed="Unable to locate package x"), "no package of its owner changes"),
    ],
)
def test_what_is_not_known_is_said_to_be_so(host, answer, words):
    [finding] = host(answer)
    assert finding.ok
    assert words in finding.message


def test_a_host_that_does_not_answer_is_told_of_elsewhere(host):
    silent = Unreachable("node-0", "no answer")
    assert host(silent) == []
    assert host(silent, facts=silent, gpus=1, recipe="cuda13") == []


def test_the_roles_packages_are_asked_about_as_the_roles_name_them(host):
    host(told())
    [(_, request)] = host.session.asked
    asked = json.loads(request)
    assert asked["wanted"]["docker"] == ["docker.io"]
    assert {"slurmd", "slurmctld", "mariadb-server"} <= set(asked["wanted"]["slurm"])
    assert {"prometheus", "prometheus-node-exporter"} <= set(asked["wanted"]["monitoring"])
    assert asked["unless"]["docker"] == "dockerd"


@pytest.mark.parametrize(
    ("version", "asked"), [("570.86.15", {"nvidia_driver": "570.86.15"}), ("580.65.06", {})]
)
def test_a_driver_that_does_not_serve_is_asked_about(host, version, asked):
    """CUDA 13 needs 580; the host's own packages say what would become of them."""
    driver = {"loaded": version, "installed": version}
    host(told(), facts={**FACTS, "driver": driver}, gpus=1, recipe="cuda13")
    *_, (_, request) = host.session.asked
    assert json.loads(request)["replaced"] == asked


MANY = """
import threading
from gpubed.configuration import package_changes
from support.samples import sample_plan
plan = sample_plan()
ready = threading.Barrier(8)
def ask():
    ready.wait()
    found = package_changes.listed(plan, "nfs", plan.nodes[0], "packages")
    assert found == ["nfs-kernel-server"]
asking = [threading.Thread(target=ask) for _ in range(8)]
for one in asking: one.start()
for one in asking: one.join()
"""


@pytest.mark.process
def test_many_hosts_are_asked_at_once():
    """Ansible's plugins, loaded by several threads, were skipped with warnings, or never ready."""
    done = subprocess.run(
        [sys.executable, "-c", MANY],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
