"""What is saved before a lease ends; the head is a STAND-IN."""

import json
import os
from types import SimpleNamespace

import pytest

from gpubed.campaigns import drive
from gpubed.cluster import lease_policy
from gpubed.core.copying import MayNotBeRead, NotAName
from gpubed.core.errors import GpubedError
from gpubed.jobs.runs import record
from gpubed.nodes.ssh import Unreachable
from support.disk_head import Disk, cluster, granted, known, sftp, shared
from support.samples import sample_plan

__all__ = ["cluster", "sftp", "shared"]

RUNS = ("digits-1", "digits-2", "digits-3")


class Head:
    """A head with three runs, of which some cannot be had."""

    def __init__(self, **errors):
        self.errors = errors
        self.copied = []

    def run(self, command, *_, **__):
        if "maxdepth" not in command:
            return SimpleNamespace(stdout="")
        return SimpleNamespace(stdout="".join(f"d{name}\0" for name in RUNS))

    def get(self, remote, local, _own):
        name = remote.rsplit("/", 1)[-1]
        if error := self.errors.get(name.replace("-", "_")):
            raise error
        self.copied.append(name)
        return [f"'{name}.sock' is left out"] if name == "digits-2" else []


def forge(folder, like, **changes):
    """Write into a folder on the head what the controller keeps of a run that went well."""
    folder.mkdir()
    told = json.loads((like / record.FILE).read_text()) | {"state": "ok", **changes}
    (folder / record.FILE).write_text(json.dumps(told | {"metrics": {"loss": 0}}))
    (folder / "output.log").write_text("forged")
    (folder / "lock").touch()
    (folder / "metrics.json").write_text("{}")
    record.seal(folder)
    (folder / "origin").mkdir()
    (folder / "origin" / "cluster.yml").write_text("forged")


@pytest.mark.process
def test_what_the_controller_wrote_of_a_run_stays(cluster, shared, sftp):
    mine = known(cluster, "20261127-000000000-digits")
    before = {path.name: path.read_text() for path in mine.iterdir()}
    forge(shared.runs / mine.name, mine)
    came = lease_policy.collect(Disk(sftp), granted(cluster, shared.plan))
    assert came.runs == (mine.name,)
    assert len(came.notes) == 5, came.notes
    after = {path.name: path.read_text() for path in mine.iterdir()}
    assert after == before | {"metrics.json": "{}"}
    assert record.read(mine).state == "failed"


@pytest.mark.process
def test_what_it_knows_nothing_of_comes_as_no_run(cluster, shared, sftp):
    """Results of another controller, or of one whose state was lost, are not to be lost."""
    mine = known(cluster, "20261127-000000000-digits", set="campaign.point", repetition=0)
    new = "20991231-235959999-digits"
    forge(shared.runs / new, mine, run_id=new, started="2026-11-27T00:00:01Z")
    came = lease_policy.collect(Disk(sftp), granted(cluster, shared.plan))
    assert came.runs == (new,)
    assert came.notes[-1].startswith(f"{new}: this controller has no record")
    assert [path.name for path in (cluster.runs / new).iterdir()] == ["metrics.json"]
    assert record.find(cluster, "last").run_id == mine.name
    assert record.every(cluster)[1] == []
    assert drive.ended_well(cluster, "campaign", {}) == {}


@pytest.mark.process
def test_a_bad_name_keeps_no_run_from_coming(cluster, shared, sftp):
    for name in (os.fsdecode(b"caf\xe9"), "two\nlines", "good"):
        (shared.runs / name).mkdir()
        (shared.runs / name / "metrics.json").write_text("{}")
    (shared.runs / "elsewhere").symlink_to("/root")
    (shared.runs / "notes").touch()
    (shared.runs / "good" / "round").symlink_to("round")
    came = lease_policy.collect(Disk(sftp), granted(cluster, shared.plan))
    assert came.runs == ("good", "two\nlines")
    assert sorted(path.name for path in cluster.runs.iterdir()) == ["good", "two\nlines"]
    where = f"in {shared.runs} is left out"
    assert came.notes[:3] == (
        f"caf\N{REPLACEMENT CHARACTER} {where}: its name is not UTF-8",
        f"elsewhere {where}: it is no folder",
        f"notes {where}: it is no folder",
    )
    assert "good: 'round' is left out: it is a link that leads nowhere" in came.notes


def test_a_run_that_fails_keeps_no_other_from_coming(cluster):
    known(cluster, "digits-1")
    head = Head(digits_1=MayNotBeRead("since this may not be read: secret"))
    with pytest.raises(GpubedError, match=r"1 of 3 run.*digits-1: .*not be read: secret"):
        lease_policy.collect(head, granted(cluster, sample_plan()))
    assert head.copied == ["digits-2", "digits-3"]


@pytest.mark.parametrize("error", [Unreachable("node-0 does not answer"), NotAName("'..'")])
def test_where_nothing_more_can_be_had_that_is_told_at_once(cluster, error):
    head = Head(digits_2=error)
    with pytest.raises(type(error), match=error.message):
        lease_policy.collect(head, granted(cluster, sample_plan()))
    assert head.copied == ["digits-1"]
