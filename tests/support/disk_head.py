"""A head whose shared storage is a folder of this machine: STAND-IN for its login."""

import shlex
import subprocess
from pathlib import PurePosixPath
from types import SimpleNamespace

import paramiko
import pytest

from gpubed.core import copying
from gpubed.core.paths import Project
from gpubed.jobs.runs import record
from gpubed.nodes.allocation import Cluster
from support.samples import sample_allocation, sample_plan
from support.sftp_server import connected


class Disk:
    """Its commands run here, its SFTP server is a folder's; also `with` it, as with a session."""

    def __init__(self, sftp):
        self.sftp, self.ran = sftp, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def run(self, command, *words, check=True, **_):
        line = command % tuple(map(shlex.quote, words))
        self.ran.append(line)
        done = subprocess.run(["sh", "-c", line], capture_output=True, check=check)
        return SimpleNamespace(stdout=done.stdout.decode(errors="replace"))

    def get(self, remote, local, own=()):
        return copying.get(self.sftp, PurePosixPath(remote), local, own)


@pytest.fixture
def sftp():
    with connected() as client:
        yield paramiko.SFTPClient.from_transport(client)


@pytest.fixture
def cluster(tmp_path):
    return Project(tmp_path).cluster("lab")


def granted(cluster, plan):
    return Cluster(cluster, plan, sample_allocation(plan))


@pytest.fixture
def shared(tmp_path):
    """The folder of runs on the head, and the plan that names it."""
    runs = tmp_path / "shared" / "runs"
    runs.mkdir(parents=True)
    plan = sample_plan(storage={"shared": {"path": str(runs.parent)}})
    return SimpleNamespace(runs=runs, plan=plan)


def known(cluster, name, **changes):
    """Let the controller have a record of a run, which failed; return its folder."""
    folder = cluster.runs / name
    folder.mkdir(parents=True)
    whole = {"run_id": name, "state": "failed", "started": "2026-11-27T00:00:00Z"}
    whole |= {"request": {"job": "digits"}, "command": [], "values": {}, "world_size": 3}
    hashes = dict.fromkeys(("uuid", "recipe_sha256", "spec_sha256", "job_sha256"), "0")
    whole["origin"] = {"cluster": "lab", "gpubed": "0.1.0", "recipe": "cpu", **hashes}
    record.write(folder, record.Record.model_validate(whole | changes))
    (folder / "output.log").write_text("ours")
    record.seal(folder)
    return folder
