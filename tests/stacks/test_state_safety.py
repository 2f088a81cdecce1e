"""The state when the disk is full, read-only or damaged: nothing lost, and what to do."""

import json
import os
import shutil
import subprocess

import pytest

from gpubed.core.errors import GpubedError

pytestmark = pytest.mark.quick

A, B = {"name": "a", "props": {}}, {"name": "b", "props": {"size": 1}}


def refuse(scenes, *resources, verb="up"):
    """Returns the one sentence and the way out of a run that must fail."""
    scenes.set(*resources)
    with pytest.raises(GpubedError) as caught:
        getattr(scenes.engine(), verb)(scenes.events.append)
    assert "\n" not in caught.value.message
    assert caught.value.hint
    return f"{caught.value.message} → {caught.value.hint}"


@pytest.fixture
def small_disk(scenes):
    """The state lies on a disk of its own, of 256 KiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(scenes.backend)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no small disk can be mounted here: {done.stderr.strip()}")
    yield scenes.backend
    subprocess.run(["umount", "-l", str(scenes.backend)], check=True)


def test_a_full_disk_stops_before_the_provider_is_called(scenes, small_disk):
    scenes.up(A)
    before = scenes.state_file.read_text()
    filler = small_disk / "filler"
    fill = ["dd", "if=/dev/zero", f"of={filler}", "bs=4k"]
    assert "No space left" in subprocess.run(fill, capture_output=True, text=True).stderr
    said = refuse(scenes, A, B)
    assert "cannot be written: No space left on device" in said
    assert "free some space" in said
    assert scenes.calls("create") == []
    assert scenes.state_file.read_text() == before
    filler.unlink()
    scenes.up(A, B)
    assert scenes.calls("create") == ["create b"]
    assert not list(scenes.state_file.parent.glob(".*")), "no half-written file is left"


def test_a_disk_that_fills_up_meanwhile_loses_no_resource(scenes, small_disk):
    """What was made before the disk was full is in the state, or pending in it."""
    things = [{"name": f"n{i}", "props": {"text": "x" * 4000}} for i in range(40)]
    refuse(scenes, *things)
    made = {call.split()[1] for call in scenes.calls("create")}
    latest = json.loads(scenes.state_file.read_text())["checkpoint"]["latest"]
    known = [*latest["resources"], *(op["resource"] for op in latest["pending_operations"])]
    assert 0 < len(made) < 40
    assert made <= {state["urn"].rpartition("::")[2] for state in known}


def test_a_read_only_state_is_named_and_nothing_is_begun(scenes, small_disk):
    scenes.up(A)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    said = refuse(scenes, A, B)
    assert "Read-only file system" in said
    assert str(scenes.backend) in said
    assert scenes.calls() == []
    scenes.set(A, B)
    assert scenes.engine().preview().changes == {"same": 2, "create": 1}, "looking is allowed"


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_truncated_state_is_recovered_by_what_the_message_says(scenes, share):
    scenes.up(A)
    scenes.up(A, B)
    text = scenes.state_file.read_text()
    scenes.state_file.write_text(text[: int(share * len(text))])
    said = refuse(scenes, A, B)
    assert "cannot be read" in said
    assert scenes.calls() == []
    backup = scenes.state_file.with_name("dev.json.bak")
    assert str(backup) in said
    shutil.copy(backup, scenes.state_file)
    assert scenes.engine().refresh(clear_pending_creates=True).changes
    scenes.up(A, B)
    assert {"a", "b"} <= {state["urn"].rpartition("::")[2] for state in scenes.state()}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 5}, "state version 5, which is too new"),
        ({"version": 2}, "state version 2, of a Pulumi that is older"),
        ({"version": 4, "features": ["views"]}, "does not support the state feature views"),
        ({"version": 4, "features": ["tomorrow"]}, "does not support the state feature tomorrow"),
    ],
)
def test_a_state_from_a_newer_version_is_left_alone(scenes, change, says):
    scenes.up(A)
    document = json.loads(scenes.state_file.read_text())
    text = json.dumps({**document, **change})
    scenes.state_file.write_text(text)
    for verb in ("up", "preview", "refresh", "destroy"):
        assert says in refuse(scenes, A, verb=verb)
    assert scenes.state_file.read_text() == text


def test_a_wrong_passphrase_is_noticed_before_anything_is_done(scenes):
    scenes.up(A)
    before = scenes.state_file.read_text()
    scenes.passphrase_file.write_text("another\n")
    said = refuse(scenes, A, B)
    assert "passphrase" in said
    assert scenes.calls() == []
    assert scenes.state_file.read_text() == before
    scenes.passphrase_file.unlink()
    assert str(scenes.passphrase_file) in refuse(scenes, A)


def test_the_states_before_the_last_ten_runs_are_kept(scenes):
    for size in range(13):
        scenes.up({"name": "a", "props": {"size": size}})
    kept = sorted((scenes.backend / ".pulumi/backups/scenes/dev").iterdir())
    assert len(kept) == 10
    sizes = [
        state["inputs"]["size"]
        for path in kept
        for state in json.loads(path.read_text())["checkpoint"]["latest"]["resources"]
        if state["urn"].endswith("::a")
    ]
    assert sizes == list(range(2, 12))
    scenes.set()
    scenes.engine().destroy()
    scenes.engine().remove()
    assert not kept[0].parent.exists()
