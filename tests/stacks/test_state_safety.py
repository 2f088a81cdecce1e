"""The state when the disk is full, read-only or damaged: nothing lost, and what to do."""

import json
import os
import shutil
import subprocess

import pytest

from gpubed.core.errors import GpubedError

A, B = {"name": "a", "props": {}}, {"name": "b", "props": {"size": 1}}


def refuse(theatre, *resources, verb="up"):
    """Returns the one sentence and the way out of a run that must fail."""
    theatre.set(*resources)
    with pytest.raises(GpubedError) as caught:
        getattr(theatre.engine(), verb)(theatre.events.append)
    assert "\n" not in caught.value.message
    assert caught.value.hint
    return f"{caught.value.message} → {caught.value.hint}"


@pytest.fixture
def small_disk(theatre):
    """The state lies on a disk of its own, of 256 KiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(theatre.backend)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no small disk can be mounted here: {done.stderr.strip()}")
    yield theatre.backend
    subprocess.run(["umount", "-l", str(theatre.backend)], check=True)


def test_a_full_disk_stops_before_the_provider_is_called(theatre, small_disk):
    theatre.up(A)
    before = theatre.state_file.read_text()
    filler = small_disk / "filler"
    fill = ["dd", "if=/dev/zero", f"of={filler}", "bs=4k"]
    assert "No space left" in subprocess.run(fill, capture_output=True, text=True).stderr
    said = refuse(theatre, A, B)
    assert "cannot be written: No space left on device" in said
    assert "free some space" in said
    assert theatre.calls("create") == []
    assert theatre.state_file.read_text() == before
    filler.unlink()
    theatre.up(A, B)
    assert theatre.calls("create") == ["create b"]
    assert not list(theatre.state_file.parent.glob(".*")), "no half-written file is left"


def test_a_disk_that_fills_up_meanwhile_loses_no_resource(theatre, small_disk):
    """What was made before the disk was full is in the state, or pending in it."""
    things = [{"name": f"n{i}", "props": {"text": "x" * 4000}} for i in range(40)]
    refuse(theatre, *things)
    made = {call.split()[1] for call in theatre.calls("create")}
    latest = json.loads(theatre.state_file.read_text())["checkpoint"]["latest"]
    known = [*latest["resources"], *(op["resource"] for op in latest["pending_operations"])]
    assert 0 < len(made) < 40
    assert made <= {state["urn"].rpartition("::")[2] for state in known}


def test_a_read_only_state_is_named_and_nothing_is_begun(theatre, small_disk):
    theatre.up(A)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    said = refuse(theatre, A, B)
    assert "Read-only file system" in said
    assert str(theatre.backend) in said
    assert theatre.calls() == []
    theatre.set(A, B)
    assert theatre.engine().preview().changes == {"same": 2, "create": 1}, "looking is allowed"


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_truncated_state_is_recovered_by_what_the_message_says(theatre, share):
    theatre.up(A)
    theatre.up(A, B)
    text = theatre.state_file.read_text()
    theatre.state_file.write_text(text[: int(share * len(text))])
    said = refuse(theatre, A, B)
    assert "cannot be read" in said
    assert theatre.calls() == []
    backup = theatre.state_file.with_name("dev.json.bak")
    assert str(backup) in said
    shutil.copy(backup, theatre.state_file)
    assert theatre.engine().refresh(clear_pending_creates=True).changes
    theatre.up(A, B)
    assert {"a", "b"} <= {state["urn"].rpartition("::")[2] for state in theatre.state()}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 5}, "state version 5, which is too new"),
        ({"version": 2}, "state version 2, of a Pulumi that is older"),
        ({"version": 4, "features": ["views"]}, "does not support the state feature views"),
        ({"version": 4, "features": ["tomorrow"]}, "does not support the state feature tomorrow"),
    ],
)
def test_a_state_from_a_newer_version_is_left_alone(theatre, change, says):
    theatre.up(A)
    document = json.loads(theatre.state_file.read_text())
    text = json.dumps({**document, **change})
    theatre.state_file.write_text(text)
    for verb in ("up", "preview", "refresh", "destroy"):
        assert says in refuse(theatre, A, verb=verb)
    assert theatre.state_file.read_text() == text


def test_a_wrong_passphrase_is_noticed_before_anything_is_done(theatre):
    theatre.up(A)
    before = theatre.state_file.read_text()
    theatre.passphrase_file.write_text("another\n")
    said = refuse(theatre, A, B)
    assert "passphrase" in said
    assert theatre.calls() == []
    assert theatre.state_file.read_text() == before


def test_a_missing_passphrase_is_named(theatre):
    theatre.up(A)
    theatre.passphrase_file.unlink()
    assert str(theatre.passphrase_file) in refuse(theatre, A)


def test_the_states_before_the_last_ten_runs_are_kept(theatre):
    for size in range(13):
        theatre.up({"name": "a", "props": {"size": size}})
    kept = sorted((theatre.backend / ".pulumi/backups/scenes/dev").iterdir())
    assert len(kept) == 10
    sizes = [
        state["inputs"]["size"]
        for path in kept
        for state in json.loads(path.read_text())["checkpoint"]["latest"]["resources"]
        if state["urn"].endswith("::a")
    ]
    assert sizes == list(range(2, 12))
    theatre.set()
    theatre.engine().destroy()
    theatre.engine().remove()
    assert not kept[0].parent.exists()
