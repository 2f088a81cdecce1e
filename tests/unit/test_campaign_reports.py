"""A report comes to where JupyterLab shows it, or says why not; the scripts are the real ones.

The head is a folder of this machine, and the connection to it a STAND-IN.
"""

import os
import shlex
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.core import errors
from gpubed.nodes.ssh import CommandFailed, CommandResult
from gpubed.report import campaign_reports
from support import measurements
from support.samples import granted_cluster
from support.sessions import Session

pytestmark = pytest.mark.process

NAME = "20261123-100000-smoke"


class Head(Session):
    """Runs scripts here, and takes files; `/shared` is a folder of the test's."""

    node = SimpleNamespace(name="node-0", port=22)
    storage, is_up, takes = None, True, 1000

    def answers(self, _port, _timeout):
        return self.is_up

    def run(self, command, *args, check=True):
        here = (shlex.quote(str(arg).replace("/shared", str(self.storage))) for arg in args)
        line = command % tuple(here)
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
        result = CommandResult(done.stdout, done.stderr, done.returncode, 0.0)
        if check and done.returncode:
            raise CommandFailed(self.node.name, line, result)
        return result

    def put(self, local, remote):
        Head.takes -= 1
        if Head.takes < 0:
            raise errors.GpubedError("cannot copy files with node-0: the connection was lost")
        shutil.copy(local, remote)
        Path(remote).chmod(0o600)  # as where nobody else reads the user's files


@pytest.fixture
def storage(tmp_path, monkeypatch):
    """The shared storage of a cluster with JupyterLab, as its roles leave it."""
    folder = tmp_path / "storage"
    (folder / "notebooks").mkdir(parents=True)
    (folder / "notebooks" / campaign_reports.LINK).symlink_to(folder / "reports")
    sudo = tmp_path / "bin/sudo"
    sudo.parent.mkdir()
    sudo.write_text('#!/bin/sh\nshift\nexec "$@"\n')  # STAND-IN
    sudo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sudo.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(campaign_reports, "SSH", Head)
    for name, value in (("storage", folder), ("is_up", True), ("takes", 1000)):
        monkeypatch.setattr(Head, name, value)
    return folder


@pytest.fixture
def cluster(tmp_path, monkeypatch, storage):
    """A cluster that is up, on which a campaign was measured."""
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    paths = granted_cluster(tmp_path)
    measurements.write(paths)
    return paths


def call(*words):
    done = CliRunner().invoke(
        cli.build(), ["report", "lab", *words], standalone_mode=False, catch_exceptions=False
    )
    assert done.return_value == 0
    return done


def there(folder):
    return sorted(path.name for path in (folder / "reports").iterdir())


def test_jupyterlab_shows_the_same_report(cluster, storage):
    done = call()
    here = cluster.campaigns / "smoke/report"
    shown = storage / "notebooks" / campaign_reports.LINK / NAME
    files = [path.relative_to(here) for path in here.rglob("*") if path.is_file()]
    assert len(files) > 3
    for file in files:
        assert (shown / file).read_bytes() == (here / file).read_bytes()
        assert (shown / file).stat().st_mode & 0o777 == 0o644
    assert there(storage) == [NAME]
    assert {one.stat().st_mode & 0o777 for one in (shown, shown / "figures")} == {0o755}
    lab = "https://10.80.48.10:8888/lab"
    assert f"in JupyterLab: {lab}/tree/campaign-reports/{NAME}/report.html" in done.stdout


def test_a_report_of_the_same_campaign_is_replaced_and_what_lies_beside_it_stays(cluster, storage):
    call()
    page = storage / "reports" / NAME / "report.html"
    page.write_text("old")
    page.with_name("notes.txt").write_text("mine")
    call()
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert page.with_name("notes.txt").read_text() == "mine"
    assert there(storage) == [NAME]


def test_links_are_not_followed(cluster, storage, tmp_path):
    made = f"reports/{NAME}"
    aim = tmp_path / "aim"
    aim.mkdir()
    (storage / made).parent.mkdir(exist_ok=True)
    (storage / made).symlink_to(aim)
    assert "does not show it" in call().stderr
    assert list(aim.iterdir()) == []


def test_a_cluster_that_is_gone_makes_no_report_fail(cluster, storage, monkeypatch):
    monkeypatch.setattr(Head, "is_up", False)
    assert "does not show it: node-0 does not answer" in " ".join(call().stderr.split())
    cluster.allocation.unlink()
    assert call().stderr == ""
    assert not (storage / "reports").exists()


def test_a_connection_that_is_lost_leaves_no_half_of_a_report(cluster, storage, monkeypatch):
    page = storage / "reports" / NAME / "report.html"
    call()
    before = page.read_text()
    monkeypatch.setattr(Head, "takes", 2)
    assert "the connection was lost" in " ".join(call().stderr.split())
    assert there(storage) == [NAME]
    assert page.read_text() == before


def test_what_somebody_has_there_is_left_alone(cluster, storage):
    mine = storage / "reports" / NAME / "report.html"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    done = call()
    assert "is there, and no report of this campaign" in done.stderr
    assert "in JupyterLab" not in done.stdout
    assert mine.read_text() == "mine"
    assert there(storage) == [NAME]
