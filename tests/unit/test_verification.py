"""A verification stands for the nodes that it was made on."""

from datetime import UTC, datetime

import pytest

from gpubed.cli import status_view
from gpubed.cli.ui import UI
from gpubed.configuration import applied
from gpubed.core.paths import Project
from gpubed.core.reading import Unreadable
from gpubed.nodes.verification import Check, Verification
from support.samples import sample_allocation, sample_plan


def verification(*checks):
    granted = sample_allocation(sample_plan())
    ids = tuple(node.id for node in granted.nodes)
    return granted, Verification(cluster="lab", at=datetime.now(UTC), node_ids=ids, checks=checks)


def test_a_verification_covers_its_own_nodes_only(tmp_path):
    granted, passed = verification(
        Check(id="a", result="pass"), Check(id="b", result="skip", reason="r")
    )
    passed.save(tmp_path / "v.json")
    again = Verification.last(tmp_path / "v.json")
    assert again == passed
    assert again.covers(granted, "")
    assert not again.covers(sample_allocation(sample_plan(nodes=[{"count": 4}])), "")


def test_a_verification_covers_only_what_was_applied_when_it_began(tmp_path):
    """A run that is killed in its checks leaves the former verification: it says nothing of now."""
    cluster = Project(tmp_path).cluster("lab")
    granted, _ = verification()
    record = cluster.applied / f"{granted.head.id}.json"
    record.parent.mkdir(parents=True)
    record.write_text('{"jupyterlab": "with port 8888"}')
    before = applied.digest(cluster, granted)
    passed = verification(Check(id="a", result="pass"))[1].model_copy(update={"configured": before})
    assert passed.covers(granted, applied.digest(cluster, granted))
    record.write_text('{"jupyterlab": "with port 9999"}')
    assert not passed.covers(granted, applied.digest(cluster, granted))
    record.write_text('{"jupyterlab": "with port 8888"}')
    assert passed.covers(granted, applied.digest(cluster, granted))


def test_an_unreadable_verification_says_so_and_how_to_make_another(tmp_path):
    path = tmp_path / "lab" / "verification.json"
    assert Verification.last(path) is None
    path.parent.mkdir()
    path.write_bytes(b'{"version": 1, "cluster": "\xff"}')
    with pytest.raises(Unreadable, match=r"verification\.json cannot be read") as refused:
        Verification.last(path)
    assert refused.value.hint == "gpubed verify lab"


def test_in_80_columns_names_are_whole_and_what_is_skipped_is_told_by_its_reason(
    monkeypatch, capsys
):
    monkeypatch.setenv("COLUMNS", "80")
    why = "the clock is off"
    _, found = verification(
        Check(id="hardware.identified", node="node-0>node-1", result="pass", limit="≥ 190 Mbit/s"),
        Check(id="clock.offset", node="node-1", result="fail", reason=why),
        Check(id="gpu.count", result="skip", reason="no GPU was asked for"),
        Check(id="gpu.memory", result="skip", reason="no GPU was asked for"),
    )
    status_view.verification(UI(), found.summary(), whole=True)
    said = capsys.readouterr().out
    assert "hardware.identified  node-0>node-1" in said
    assert f"fail clock.offset node-1: {why}\n" in said
    assert "- gpu.count, gpu.memory: no GPU was asked for\n" in said
