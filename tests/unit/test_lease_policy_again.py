"""What is saved is saved again nearer to the end, and only what is new; a STAND-IN is the head."""

from datetime import timedelta

import pytest

from gpubed.cluster import lease, lease_policy
from gpubed.core.errors import GpubedError
from support.disk_head import Disk, cluster, granted, sftp, shared
from support.samples import sample_plan

pytestmark = pytest.mark.process

__all__ = ["cluster", "sftp", "shared"]

MINUTE = timedelta(minutes=1)


@pytest.fixture
def head(monkeypatch, sftp):
    found = Disk(sftp)
    monkeypatch.setattr(lease_policy, "SSH", lambda *_: found)
    return found


@pytest.fixture
def ending(cluster, shared):
    """A cluster whose storage is on a node's disk, and whose lease ends in 20 minutes."""
    cluster.state.mkdir(parents=True)
    end = lease.now() + 20 * MINUTE
    cluster.lease.write_text(lease.Record(granted_until=end).model_dump_json())

    def make(provider="nfs", **wanted):
        storage = {"shared": {"path": str(shared.runs.parent), "provider": provider}}
        return granted(cluster, sample_plan(storage=storage, lease={"before_end": wanted}))

    return make


def write(folder, name, text="{}"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def here(cluster):
    return [path.name for path in cluster.paths.checkpoints.glob("*/c1/*.pt")]


def test_a_run_that_is_written_on_comes_again_and_no_other(head, ending, shared):
    """It is nobody's here: of JupyterLab, or of Slurm."""
    cluster, runs = ending(), shared.runs
    write(runs / "jupyter", "loss.csv", "1")
    write(runs / "slurm", "loss.csv", "1")
    assert lease_policy.collect(head, cluster).runs == ("jupyter", "slurm")
    assert lease_policy.collect(head, cluster).runs == ()
    write(runs / "slurm", "loss.csv", "1, 2")
    write(runs / "slurm", "metrics.json")
    assert lease_policy.collect(head, cluster).runs == ("slurm",)
    assert (cluster.paths.runs / "slurm" / "loss.csv").read_text() == "1, 2"
    write(runs / "slurm", "late.csv", "3")
    assert lease_policy.collect(head, cluster).runs == ("slurm",)


@pytest.mark.parametrize(("provider", "come"), [("nfs", True), ("volume", False)])
def test_checkpoints_come_where_they_would_go_with_a_node(head, ending, shared, provider, come):
    cluster = ending(provider)
    write(shared.runs.parent / "checkpoints" / "c1", "step-1.pt", "weights")
    said = lease_policy.prepare(cluster)
    assert said[0] == f"collected 0 run(s) into {cluster.paths.runs}"
    told = [text.partition(" into ")[0] for text in said[1:]]
    assert told == ["collected 1 checkpoint(s)"] * come
    assert here(cluster) == ["step-1.pt"] * come


def test_checkpoints_come_also_where_a_run_does_not_and_that_is_no_success(head, ending, shared):
    """A release does not go on then: what is not here would be gone."""
    cluster, get = ending(), head.get
    write(shared.runs / "big", "loss.csv")
    write(shared.runs.parent / "checkpoints" / "c1", "step-1.pt", "weights")

    def full(remote, local, own=()):
        if remote.endswith("/big"):
            raise GpubedError("no space left on device")
        return get(remote, local, own)

    head.get = full
    with pytest.raises(GpubedError, match=r"1 of 1 run.*no space left"):
        lease_policy.prepare(cluster)
    assert here(cluster) == ["step-1.pt"]


def test_the_command_is_run_once_before_an_end_whatever_becomes_of_the_rest(
    head, ending, shared, monkeypatch, tmp_path
):
    cluster = ending(command=f"echo asked >> {tmp_path}/asked")

    def fail(*_):
        raise GpubedError("no room")

    with monkeypatch.context() as full:
        full.setattr(lease_policy, "collect", fail)
        for _ in range(2):
            with pytest.raises(GpubedError, match="no room"):
                lease_policy.prepare(cluster)
    assert lease_policy.prepare(cluster)[-1].startswith("collected 0 run(s)")
    lease.mark_prepared(cluster.paths, lease.last(cluster.paths))
    assert lease_policy.prepare(cluster)[-1].startswith("collected 0 run(s)")
    assert (tmp_path / "asked").read_text() == "asked\n"
