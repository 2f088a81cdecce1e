"""What only the embedded engine promises: locks, crashes, interruptions, refusals, errors."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gpubed.core.errors import Locked, Refused
from gpubed.engines.embedded import LogEvent, ProgramFailed, Refusal, StepFailed
from gpubed.engines.embedded.checkpoint import verify
from gpubed.engines.embedded.cipher import PassphraseCipher
from gpubed.engines.embedded.state import decode
from support import listening

pytestmark = pytest.mark.quick

A = {"name": "a", "props": {"size": 1}}
B = {"name": "b", "props": {"size": 2, "peer": "@a.ip", "pw": "!hush"}}


def wait_for(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def test_a_preview_of_a_new_stack_plans_everything_and_writes_nothing(scenes):
    scenes.set(A, B, exports={"ip": "@a.ip"})
    result = scenes.engine().preview(scenes.events.append)
    assert result.changes == {"create": 3}
    assert {step.status for step in result.steps} == {"planned"}
    assert result.outputs == {"ip": "[unknown]"}
    assert scenes.calls("create") == []
    assert not scenes.state_file.exists()
    assert not scenes.config_file.exists()


def test_a_stack_lives_from_up_to_remove(scenes):
    result = scenes.up(A, B, exports={"ip": "@a.ip", "pw": "!hush"})
    engine = scenes.engine()
    assert result.changes == {"create": 3}
    assert result.outputs == {"ip": "10.0.0.1", "pw": "[secret]"}
    assert engine.outputs(show_secrets=True) == {"ip": "10.0.0.1", "pw": "hush"}
    assert "hush" not in scenes.state_file.read_text()
    assert scenes.state_file.stat().st_mode & 0o077 == 0
    exported = engine.export()
    assert exported["version"] == 3
    assert len(exported["deployment"]["resources"]) == 4
    with pytest.raises(Refused, match="still has resources"):
        engine.remove()
    assert engine.destroy().changes == {"delete": 3}
    assert scenes.calls("delete") == ["delete b", "delete a"]
    assert engine.outputs() == {}
    engine.remove()
    assert not scenes.state_file.exists()
    assert not scenes.config_file.exists()
    engine.remove()


def test_an_unchanged_up_leaves_the_state_file_and_other_ciphertext_alone(scenes):
    scenes.up(A, B, exports={"pw": "!hush"})
    before = scenes.state_file.read_bytes()
    assert scenes.up(A, B, exports={"pw": "!hush"}).changes == {"same": 3}
    assert scenes.state_file.read_bytes() == before
    sealed = next(r for r in scenes.latest()["resources"] if r["urn"].endswith("::b"))["inputs"]
    scenes.up({"name": "a", "props": {"size": 5}}, B)
    assert sealed["pw"]["ciphertext"] in scenes.state_file.read_text()


def test_events_tell_what_changed_and_what_was_said(scenes):
    scenes.up(A)
    scenes.up({"name": "a", "props": {"size": 9}})
    started, done = (e for e in scenes.events if getattr(e, "op", "") == "update")
    assert (started.status, done.status) == ("started", "done")
    assert done.why == ("size",)
    assert done.seconds >= 0


def test_a_failed_step_names_resource_and_reason_and_saves_the_rest(scenes):
    with pytest.raises(StepFailed, match=r"create of b .*RuntimeError: cannot create b") as caught:
        scenes.up(A, B, orders=["create:b"])
    assert [event.name for event in caught.value.events] == ["b"]
    errors = [e.message for e in scenes.events if isinstance(e, LogEvent)]
    assert any("Traceback" in text for text in errors)
    assert not any("monitor has terminated" in text for text in errors)
    assert {s["urn"].rpartition("::")[2] for s in scenes.state()} == {"a", "default", "scenes-dev"}
    assert "pending_operations" not in scenes.latest()


def test_a_program_that_raises_is_reported_with_its_last_line(scenes):
    with pytest.raises(ProgramFailed, match="ValueError: nothing works"):
        scenes.up(A, **{"raise": "nothing works"})
    [traceback] = [e for e in scenes.events if getattr(e, "severity", "") == "error"]
    assert "__main__.py" in traceback.message
    assert "runpy" not in traceback.message


def test_a_program_that_leaves_early_has_not_asked_for_deletions(scenes):
    scenes.up(A)
    with pytest.raises(ProgramFailed, match="ended early with exit code 0"):
        scenes.up(exit=0)
    assert scenes.calls("delete") == []


def test_a_stack_that_is_not_there_has_nothing_to_destroy(scenes):
    scenes.set()
    engine = scenes.engine()
    assert engine.destroy().changes == engine.refresh().changes == {}
    assert engine.outputs() == {}
    assert list(scenes.backend.iterdir()) == []


def test_values_of_the_cli_s_configuration_stay_and_change_nothing(scenes):
    values = "config:\n  scenes:size: 3\n"
    scenes.config_file.write_text(values)
    scenes.up(A)
    assert scenes.config_file.read_text().endswith(values)
    scenes.config_file.write_text(scenes.config_file.read_text() + "  scenes:more: 4\n")
    assert scenes.up(A).changes == {"same": 2}


def test_what_is_retained_leaves_only_the_state(scenes):
    scenes.up({**A, "opts": {"retain_on_delete": True}}, B)
    scenes.set()
    assert scenes.engine().destroy().changes == {"delete": 3}
    assert scenes.calls("delete") == ["delete b"]


@pytest.mark.parametrize(
    ("options", "feature"),
    [
        ({"aliases": ["urn:pulumi:dev::scenes::x::y"]}, "aliases"),
        ({"replace_on_changes": ["size"]}, "replaceOnChanges"),
        ({"ignore_changes": ["size"]}, "ignoreChanges"),
        ({"import_": "id-7"}, "importId"),
        ({"id": "id-7"}, "ReadResource"),
    ],
)
def test_what_is_left_out_is_refused_by_name_and_points_to_the_cli(scenes, options, feature):
    with pytest.raises(Refusal, match=feature) as caught:
        scenes.up({"name": "a", "opts": options})
    assert "gpubed doctor --fix" in str(caught.value)
    assert scenes.calls() == []


def test_a_foreign_lock_is_refused_and_named(scenes):
    lock = _lock(scenes, pid=77, hostname="elsewhere")
    with pytest.raises(Locked, match="process 77 of u on elsewhere since then") as caught:
        scenes.up(A)
    assert str(lock) in caught.value.hint
    assert caught.value.exit_code == 5


@pytest.mark.parametrize("noticed", [True, False], ids=["gone", "nobody waited for it"])
def test_a_lock_of_a_dead_process_of_this_host_is_taken_over(scenes, noticed):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
    if noticed:
        dead.wait()
    lock = _lock(scenes, pid=dead.pid, hostname=socket.gethostname())
    assert scenes.up().changes == {"create": 1}
    assert not lock.exists()


def _lock(scenes, **holder):
    folder = scenes.backend / ".pulumi/locks/organization/scenes/dev"
    folder.mkdir(parents=True)
    path = folder / "0.json"
    path.write_text(json.dumps({"username": "u", "timestamp": "then", **holder}))
    return path


def test_two_runs_exclude_each_other(scenes):
    scenes.set(A)
    refused = threading.Event()

    def second(_event):
        if not refused.is_set():
            with pytest.raises(Locked):
                scenes.engine().destroy()
            refused.set()

    scenes.engine().up(second)
    assert refused.is_set()


def test_steps_run_in_parallel_when_nothing_orders_them(scenes):
    names = [f"n{i}" for i in range(8)]
    begun = time.monotonic()
    result = scenes.up(*({"name": n, "props": {"sleep": 1}} for n in names))
    assert result.changes == {"create": 9}
    spent = [step.seconds for step in result.steps if step.name in names]
    # The SDK's server alone would take two rounds of four.
    assert sum(spent) > 8
    assert max(spent) < 1.9
    assert time.monotonic() - begun < 8


def _play_in_a_process(scenes):
    return subprocess.Popen(
        scenes.command(),
        env={**os.environ, **scenes.environment},
        stderr=subprocess.PIPE,
        text=True,
    )


def _children_of_the_scene(scenes):
    """Returns the processes, other than the engine's, that work on this scene."""
    mark = f"CALLS={scenes.calls_file}".encode()
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in environ.read_bytes():
                found.append(int(environ.parent.name))
        except OSError:
            continue
    return found


def test_a_killed_engine_leaves_a_pending_operation_and_no_process(scenes):
    scenes.set({"name": "a", "props": {"sleep": 60, "spawn": True}})
    engine = _play_in_a_process(scenes)
    wait_for(lambda: scenes.calls("create"))
    [pending] = scenes.latest()["pending_operations"]
    assert pending["type"] == "creating"
    assert pending["resource"]["urn"].endswith("::a")
    # Engine, program, provider and what the provider started.
    wait_for(lambda: len(_children_of_the_scene(scenes)) == 4)
    engine.kill()
    engine.wait()
    wait_for(lambda: not _children_of_the_scene(scenes))

    scenes.set({"name": "b", "props": {}})
    scenes.engine().up(scenes.events.append)
    warnings = [e.message for e in scenes.events if getattr(e, "severity", "") == "warning"]
    assert any("interrupted while creating a" in text for text in warnings)
    # It stays until somebody has looked.
    assert [p["type"] for p in scenes.latest()["pending_operations"]] == ["creating"]
    scenes.engine().refresh(clear_pending_creates=True)
    assert "pending_operations" not in scenes.latest()


def test_only_this_user_reaches_the_processes_that_run_what_they_are_sent(scenes):
    scenes.set({"name": "a", "props": {"sleep": 4}})
    engine = _play_in_a_process(scenes)
    wait_for(lambda: scenes.calls("create"))
    family = _children_of_the_scene(scenes)
    assert listening.tcp(family) == set()
    sockets = {Path(path) for path in listening.unix(family)}
    assert {path.name for path in sockets} == {"engine", "provider"}
    [folder] = {path.parent for path in sockets}
    assert folder.stat().st_mode & 0o777 == 0o700
    if os.geteuid() == 0:
        assert all(listening.lets_in(str(path), os.getuid()) for path in sockets)
        assert not any(listening.lets_in(str(path), listening.NOBODY) for path in sockets)
    engine.communicate(timeout=20)
    assert engine.returncode == 0
    assert not folder.exists()


def test_ctrl_c_lets_the_step_in_flight_finish_and_starts_no_other(scenes):
    scenes.set({"name": "a", "props": {"sleep": 2}}, B)
    engine = _play_in_a_process(scenes)
    wait_for(lambda: scenes.calls("create"))
    engine.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in engine.communicate(timeout=20)[1]
    assert {s["urn"].rpartition("::")[2] for s in scenes.state()} == {"a", "default", "scenes-dev"}
    assert "pending_operations" not in scenes.latest()
    assert scenes.calls("create") == ["create a"]
    assert not any((scenes.backend / ".pulumi/locks").rglob("*.json"))
    assert not _children_of_the_scene(scenes)


def test_a_step_that_takes_long_is_ended_and_leaves_a_trace(scenes):
    scenes.set({"name": "a", "props": {"sleep": 60, "spawn": True}})
    engine = _play_in_a_process(scenes)
    wait_for(lambda: scenes.calls("create"))
    engine.send_signal(signal.SIGINT)
    engine.communicate(timeout=10)
    assert [p["type"] for p in scenes.latest()["pending_operations"]] == ["creating"]
    assert not any((scenes.backend / ".pulumi/locks").rglob("*.json"))
    assert not _children_of_the_scene(scenes)


def test_a_second_ctrl_c_ends_at_once_and_leaves_a_trace(scenes):
    scenes.set({"name": "a", "props": {"sleep": 60, "spawn": True}})
    engine = _play_in_a_process(scenes)
    wait_for(lambda: scenes.calls("create"))
    engine.send_signal(signal.SIGINT)
    # The program goes first; what is left is the wait for the provider.
    wait_for(lambda: len(_children_of_the_scene(scenes)) == 3)
    engine.send_signal(signal.SIGINT)
    engine.communicate(timeout=20)
    assert [p["type"] for p in scenes.latest()["pending_operations"]] == ["creating"]
    assert not _children_of_the_scene(scenes)


def test_every_state_written_is_one_that_any_pulumi_engine_accepts(scenes):
    """Reads each version of the file that a busy run leaves behind."""
    seen = []

    def look(_event):
        if scenes.state_file.exists():
            seen.append(scenes.state_file.read_text())

    scenes.set(A, B, {"name": "c", "props": {"zone": "@b.ip"}})
    scenes.engine().up(look)
    first = {"zone": "z", "first": True}
    scenes.set({"name": "a", "props": first}, B, {"name": "c", "props": {"zone": "@b.ip"}})
    scenes.engine().up(look)
    assert len(set(seen)) > 5
    for text in set(seen):
        latest = json.loads(text)["checkpoint"].get("latest", {})
        if latest.get("resources"):
            salt = latest["secrets_providers"]["state"]["salt"]
            cipher = PassphraseCipher("scenes", salt)
            verify(decode(raw, cipher) for raw in latest["resources"])


def test_a_preview_that_looks_starts_from_what_there_is_and_writes_nothing(scenes):
    scenes.up(A, B)
    before = scenes.state_file.read_text()
    scenes.set(A, B, orders=["gone:a"])
    result = scenes.engine().preview(refresh=True)
    assert result.changes["create"] == 1
    assert [step.name for step in result.steps if step.op == "create"] == ["a"]
    assert scenes.calls("create", "update", "delete") == []
    assert scenes.state_file.read_text() == before
    assert scenes.engine().preview().changes == {"same": 3}, "nobody looked"
