"""Units, secrets, events, verification: small things that much stands on."""

import json
import stat
from datetime import UTC, datetime

import pytest

from gpubed.core import progress, secret, units
from gpubed.core.errors import UsageError
from gpubed.core.reading import Unreadable
from gpubed.engines import stack
from gpubed.jobs import jobfile
from gpubed.nodes.verification import Check, Verification
from support.samples import sample_allocation, sample_plan


@pytest.mark.parametrize(
    ("text", "bps"),
    [
        ("200 Mbit/s", 200e6),
        ("10Gbps", 10e9),
        ("1.5 Gbit/s", 1.5e9),
        (1000, 1000),
        ("64 kbit", 64e3),
    ],
)
def test_rates_are_read_in_bits_per_second(text, bps):
    assert units.parse_rate(text) == bps


@pytest.mark.parametrize(
    "text", ["fast", "200 MB/s", "-1 Mbit/s", "", True, None, [], "1 2 Mbit/s"]
)
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(ValueError, match="must look like"):
        units.parse_rate(text)


def test_sizes_know_binary_and_decimal_prefixes():
    assert units.parse_bytes("1 GiB") == 2**30
    assert units.parse_bytes("1 GB") == 10**9


def test_a_rate_is_written_as_it_is_read():
    assert units.parse_rate(units.format_rate(200e6)) == 200e6


def test_a_token_is_made_once_and_private(tmp_path):
    path = tmp_path / "secrets" / "token"
    secret.ensure_token(path)
    first = path.read_text()
    secret.ensure_token(path)
    assert path.read_text() == first
    assert len(first) == 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_key_pair_is_made_once_and_its_public_half_is_stable(tmp_path):
    path = tmp_path / "secrets" / "id_ed25519"
    assert secret.public_key(path) == ""
    public = secret.ensure_key(path)
    assert public.startswith("ssh-ed25519 ")
    assert secret.ensure_key(path) == public


def test_events_reach_whoever_follows(tmp_path, monkeypatch):
    path, seen = tmp_path / "events", []
    monkeypatch.setenv(progress.VARIABLE, str(path))
    with progress.Follower(path, seen.append):
        progress.emit("phase", phase="base", status="started")
        progress.emit("note", message="two\nlines")
    assert [event["what"] for event in seen] == ["phase", "note"]
    assert len(path.read_text().splitlines()) == 2


def test_without_a_listener_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.delenv(progress.VARIABLE, raising=False)
    progress.emit("note", message="x")
    assert list(tmp_path.iterdir()) == []


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
    assert again.covers(granted)
    assert not again.covers(sample_allocation(sample_plan(nodes=[{"count": 4}])))


def test_a_failed_verification_covers_nothing():
    granted, failed = verification(Check(id="a", result="fail", reason="x"))
    assert not failed.covers(granted)
    assert failed.summary()["failed"] == 1


def test_an_unreadable_verification_says_so_and_how_to_make_another(tmp_path):
    path = tmp_path / "lab" / "verification.json"
    assert Verification.last(path) is None
    path.parent.mkdir()
    path.write_bytes(b'{"version": 1, "cluster": "\xff"}')
    with pytest.raises(Unreadable, match=r"verification\.json cannot be read") as refused:
        Verification.last(path)
    assert refused.value.hint == "gpubed verify lab"


@pytest.mark.parametrize(
    ("condition", "metrics", "says"),
    [
        ({"metric": "world_size", "equals": "ranks"}, {"world_size": 2}, "2 instead of 3"),
        ({"metric": "world_size", "equals": "ranks"}, {"world_size": 3}, ""),
        ({"metric": "accuracy", "at_least": 0.97}, {"accuracy": 0.9}, "at least 0.97"),
        ({"metric": "error", "at_most": 0.05}, {"error": 0.1}, "at most 0.05"),
        ({"metric": "error", "at_most": 0.05}, {}, "not reported"),
        ({"metric": "error", "at_most": 0.05}, {"error": None}, ""),
        ({"metric": "accuracy", "at_least": 0.97}, {"accuracy": float("nan")}, "at least 0.97"),
    ],
)
def test_a_condition_says_how_it_is_broken(condition, metrics, says):
    broken = jobfile.Condition.model_validate(condition).broken_by(metrics, ranks=3)
    assert says in broken
    assert bool(broken) == bool(says)


def test_settings_of_a_job_are_name_and_value():
    assert jobfile.parse_settings(["learning-rate=0.1", "epochs=2"]) == {
        "learning_rate": "0.1",
        "epochs": "2",
    }
    with pytest.raises(UsageError):
        jobfile.parse_settings(["epochs"])


def test_event_files_hold_json_lines(tmp_path, monkeypatch):
    path = tmp_path / "events"
    monkeypatch.setenv(progress.VARIABLE, str(path))
    progress.emit("check", id="x", value=float("nan"))
    assert json.loads(path.read_text())["id"] == "x"


def test_an_unknown_engine_is_refused():
    with pytest.raises(UsageError, match="there is no engine 'cil'"):
        stack.choose("cil")
