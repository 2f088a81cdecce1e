"""Runs the playbooks: inventory → configured nodes.

ansible-runner starts Ansible and hands on its events. `ansible.cfg` has it use mitogen
where that is installed, since on small controllers most of the time goes into starting
modules; `GPUBED_ANSIBLE_STRATEGY=linear` goes back to Ansible's own strategy.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ansible_runner

from gpubed.configuration.roles import PHASES
from gpubed.core import files, harmless, parallel, reading, runlock
from gpubed.core.errors import GpubedError, UsageError
from gpubed.core.paths import ClusterPaths, assets
from gpubed.core.progress import emit
from gpubed.nodes.allocation import Node
from gpubed.nodes.allocation import load as load_allocation
from gpubed.nodes.ssh import HostKeyMismatch, greet

STRATEGY = "GPUBED_ANSIBLE_STRATEGY"
_BROKE = "Task failed: Mitogen was disconnected"
# Ansible's words, without the reason, where a program cannot be started.
_NOT_STARTED = "Error executing command"
_KEEP = 5
_ERROR = re.compile(r"\[?ERROR\b")
_MOST_WORDS = 12  # lines: the error, where it comes from, and the part of the file
_WAIT_FOR_OTHER_RUN = 600.0


class ConfigurationFailed(GpubedError):
    """A task failed on a node."""


@dataclass
class Outcome:
    """What a run of the playbooks did.

    Attributes:
        changed: Number of changed tasks by node, of those that took part.
        phases: Seconds by phase.
        log: Ansible's complete output.
    """

    changed: dict[str, int] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    log: Path | None = None


def configure(
    paths: ClusterPaths,
    *,
    tags: Iterable[str] = (),
    limit: str | None = None,
    due: Mapping[str, Sequence[str]] | None = None,
    check: bool = False,
    playbook: str = "site.yml",
) -> Outcome:
    """Run a playbook on a cluster's nodes.

    Args:
        paths: The cluster's; its inventory must have been rendered.
        tags: Roles to apply; all when empty.
        limit: Ansible host pattern.
        due: The nodes to apply a role on, by role; all roles on all nodes when None.
        check: Report what would change, change nothing.
        playbook: File in `playbooks/`.

    Raises:
        ConfigurationFailed: A task failed or a node was not reached.
        HostKeyMismatch: Somebody else answers in a node's place.
        Locked: Another configuration of the cluster does not end.
    """
    with runlock.locked(paths.state / "configure.lock", "configure", _WAIT_FOR_OTHER_RUN):
        watcher, folder = _Watcher(), _private_folder(paths)
        runner = ansible_runner.run(
            private_data_dir=str(folder),
            project_dir=str(assets() / "playbooks"),
            playbook=str(assets() / "playbooks" / playbook),
            inventory=str(paths.inventory),
            envvars=environment(),
            cmdline=shlex.join(_options(tags, limit, check) + where(folder, due)),
            event_handler=watcher.handle,
            # Its own would take Ctrl-C for itself, and end as a failure.
            cancel_callback=lambda: False,
            rotate_artifacts=_KEEP,
            suppress_env_files=True,
            quiet=True,
        )
    log = watcher.outcome.log = _keep_log(paths, Path(runner.config.artifact_dir) / "stdout")
    watcher.finish()
    if runner.rc != 0:
        _recognize(paths, watcher.left)
        raise ConfigurationFailed(
            watcher.failure or _last_words(log, runner.rc),
            f"whole output: {log}",
        )
    return watcher.outcome


def limited(paths: ClusterPaths, limit: str) -> list[str]:
    """Return the nodes that an Ansible pattern means in the rendered inventory.

    Raises:
        UsageError: It means none.
    """
    words = ["ansible", "all", f"--inventory={paths.inventory}", f"--limit={limit}"]
    done = subprocess.run(
        [*words, "--list-hosts"],
        env={**os.environ, **environment()},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        nodes = ", ".join(node.name for node in load_allocation(paths.allocation).nodes)
        raise UsageError(f"--limit {limit} names no node", f"nodes: {nodes}")
    return [line.strip() for line in done.stdout.splitlines()[1:]]


def environment() -> dict[str, str]:
    """Return what Ansible needs in its environment to run as gpubed runs it."""
    needed = {
        "ANSIBLE_CONFIG": str(assets() / "ansible.cfg"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "ANSIBLE_NOCOLOR": "1",
        # ansible-runner would set it to False; an inventory of an earlier gpubed does not object.
        "ANSIBLE_HOST_KEY_CHECKING": "True",
    }
    if wanted := os.environ.get(STRATEGY):
        needed["ANSIBLE_STRATEGY"] = wanted
    return needed


def _private_folder(paths: ClusterPaths) -> Path:
    folder = paths.state / "ansible"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # What ansible-runner keeps there would count again in a run without options of its own.
    shutil.rmtree(folder / "env", ignore_errors=True)
    return folder


def _options(tags: Iterable[str], limit: str | None, check: bool) -> list[str]:
    words = []
    if chosen := ",".join(sorted(tags)):
        words += ["--tags", chosen]
    if limit:
        words += ["--limit", limit]
    if check:
        words += ["--check", "--diff"]
    return words


def where(folder: Path, due: Mapping[str, Sequence[str]] | None) -> list[str]:
    """Return the options that apply roles only where they are due (`playbooks/tasks/role.yml`)."""
    if due is None:
        return []
    told = folder / "due.json"  # of many nodes: too long for a command line
    files.write(told, json.dumps({"gpubed_due": due}).encode())
    nodes = dict.fromkeys(name for names in due.values() for name in names)
    return ["--extra-vars", f"@{told}", "--limit", ",".join(nodes)]


def _keep_log(paths: ClusterPaths, stdout: Path) -> Path:
    log = paths.logs / time.strftime("%Y%m%d-%H%M%S-ansible.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    if stdout.exists():
        # What nodes say is in it, and people print it.
        with (
            stdout.open(encoding="utf-8", errors="replace") as said,
            log.open("w", encoding="utf-8") as kept,
        ):
            kept.writelines(map(harmless.text, said))
    return log


def _last_words(log: Path, code: int) -> str:
    """Return what Ansible itself said when it ended without a failed task, as of a broken file."""
    lines: list[str] = []
    with suppress(reading.Unreadable):
        lines = reading.file(log).text().splitlines()
    begin = next((n for n, line in enumerate(lines) if _ERROR.match(line)), None)
    said = "" if begin is None else "\n".join(lines[begin : begin + _MOST_WORDS]).strip()
    return f"Ansible ended with exit code {code}" + (f": {said}" if said else "")


def _recognize(paths: ClusterPaths, names: Collection[str]) -> None:
    """Look again at nodes whose connection was refused or broke: Ansible does not say who answers.

    Raises:
        HostKeyMismatch: Somebody else, in a node's place.
    """

    def look(node: Node) -> HostKeyMismatch | None:
        try:
            greet(node, paths)
        except HostKeyMismatch as error:
            return error
        except GpubedError:
            pass  # what Ansible said of it stands
        return None

    nodes = [node for node in load_allocation(paths.allocation).nodes if node.name in names]
    for error in filter(None, parallel.each(look, nodes)):
        raise error


class _Watcher:
    """Turns ansible-runner's events into ours and remembers the first failure."""

    def __init__(self) -> None:
        self.outcome = Outcome()
        self.failure: str | None = None
        self.left: set[str] = set()
        self._phase: str | None = None
        self._since = 0.0
        self._worked: dict[str, float] = defaultdict(float)
        self._lost: set[str] = set()

    def handle(self, event: dict[str, Any]) -> bool:
        kind, data = event.get("event", ""), event.get("event_data", {})
        if kind == "playbook_on_play_start":
            self._enter(str(data.get("play", "")).lower())
        elif kind == "playbook_on_task_start":
            emit("task", phase=self._phase, role=data.get("role"), task=data.get("task"))
        elif kind.startswith("runner_on_") and kind != "runner_on_start":
            self._host(kind.removeprefix("runner_on_"), data)
        elif kind == "playbook_on_stats":
            changed = data.get("changed", {})
            self.outcome.changed = {node: changed.get(node, 0) for node in data["processed"]}
        return False  # nothing else reads the event files

    def finish(self) -> None:
        self._enter(None)

    def _enter(self, phase: str | None) -> None:
        now = time.monotonic()
        if self._phase:
            seconds = round(now - self._since, 2)
            self.outcome.phases[self._phase] = seconds
            worked = {node: round(took, 2) for node, took in self._worked.items()}
            status = "failed" if self._lost else "done"
            emit("phase", phase=self._phase, status=status, seconds=seconds, nodes=worked)
        self._worked.clear()
        self._lost.clear()
        self._phase, self._since = phase if phase in PHASES else None, now
        if self._phase:
            emit("phase", phase=self._phase, status="started")

    def _host(self, result: str, data: dict[str, Any]) -> None:
        answer = data.get("res") or {}
        self._worked[str(data.get("host"))] += data.get("duration") or 0.0
        self._lost.discard(str(data.get("host")))  # it goes on: a block rescued it
        if result in ("failed", "unreachable") and not data.get("ignore_errors"):
            reason = _reason(answer)
            self._lost.add(str(data.get("host")))
            # Mitogen calls it a failure of the task.
            if result == "unreachable" or reason.startswith(_BROKE):
                self.left.add(str(data.get("host")))
            part, task = data.get("role") or self._phase, data.get("task")
            where = f"{part}: {task}" if part else task
            self.failure = self.failure or f"{where} failed on {data.get('host')}: {reason}"
            emit(
                "host", host=data.get("host"), task=data.get("task"), status=result, message=reason
            )
        elif result == "ok" and answer.get("changed"):
            emit("host", host=data.get("host"), task=data.get("task"), status="changed")


def _reason(answer: dict[str, Any]) -> str:
    """Return what a person needs of a task's answer."""
    if "censored" in answer:
        return "the output is hidden because it may hold a secret"
    for item in answer.get("results", ()):
        if item.get("failed"):
            return _reason(item)
    said = answer.get("stderr") or answer.get("module_stderr") or answer.get("stdout") or ""
    message = str(answer.get("msg") or "") or json.dumps(answer)[:500]
    code, words = answer.get("rc"), answer.get("cmd")
    if message.startswith(_NOT_STARTED) and isinstance(code, int) and words:
        program = words[0] if isinstance(words, list) else str(words).split()[0]
        message = f"{program} cannot be run: {os.strerror(code)}"
    tail = "\n".join(str(said).strip().splitlines()[-10:])
    return f"{message}\n{tail}".strip() if tail and tail not in message else message
