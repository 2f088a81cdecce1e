"""Runs the playbooks that configure the nodes of an inventory.

Events come from gpubed's callback plugin (`events`), never from Ansible's output, which nodes can
write to. Ansible uses mitogen if it is installed: small controllers spend most of the time on
starting modules. `GPUBED_ANSIBLE_STRATEGY=linear` restores Ansible's own strategy.
"""

from __future__ import annotations

import codecs
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from ansible_runner.interface import init_command_config

from gpubed.configuration.events import FILE, NOT_TRUSTED, Event, Outcome, Watcher
from gpubed.core import files, parallel, runlock
from gpubed.core.errors import GpubedError, UsageError
from gpubed.core.paths import ClusterPaths, assets
from gpubed.core.progress import Follower
from gpubed.core.text import printable
from gpubed.nodes.allocation import Node
from gpubed.nodes.allocation import load as load_allocation
from gpubed.nodes.ssh import HostKeyMismatch, greet

STRATEGY = "GPUBED_ANSIBLE_STRATEGY"
# Ansible's output: characters logged from the start, and bytes kept from the end of a longer one.
_LOG, _END = 8 * 2**20, 256 * 2**10
_END_S = 10.0  # wait for the end of the output, which children of Ansible may keep open
_WAIT_FOR_OTHER_RUN = 600.0


class ConfigurationFailed(GpubedError):
    """A task failed on a node."""


def configure(
    paths: ClusterPaths,
    *,
    tags: Iterable[str] = (),
    limit: str | None = None,
    due: Mapping[str, Sequence[str]] | None = None,
    check: bool = False,
    playbook: str = "site.yml",
) -> Outcome:
    """Run a playbook on a cluster's nodes; its inventory must have been rendered.

    Args:
        tags: Roles to apply; by default all.
        limit: A pattern of Ansible's that selects nodes.
        due: Nodes on which each role is applied, by role; by default every role on all nodes.
        check: Whether to show changes without making them.

    Raises:
        ConfigurationFailed: A task failed.
        HostKeyMismatch: A node presents another host key.
        Locked: Another run does not end.
    """
    with runlock.locked(paths.state / "configure.lock", "configure", _WAIT_FOR_OTHER_RUN):
        folder = paths.state / "ansible"
        shutil.rmtree(folder, ignore_errors=True)  # of an interrupted run or a former version
        folder.mkdir(mode=0o700, parents=True)
        words = [_inventory(paths), str(assets() / "playbooks" / playbook), *where(folder, due)]
        if chosen := ",".join(sorted(tags)):
            words += ["--tags", chosen]
        words += ["--limit", limit] if limit else []
        words += ["--check", "--diff"] if check else []
        code, watcher = _play(words, folder, paths)
        shutil.rmtree(folder, ignore_errors=True)
    if code != 0:
        if watcher.lost:
            _check_host_keys(paths, watcher.lost)
        message, hint = watcher.failure or f"Ansible ended with exit code {code}", ""
        if message.endswith(NOT_TRUSTED):
            hint = (
                "export SSL_CERT_FILE=… (the certificates of your proxy or index; on own hosts: "
                f"update-ca-certificates there), then: gpubed up {paths.name}\n"
            )
        raise ConfigurationFailed(message, f"{hint}whole output: {watcher.outcome.log}")
    return watcher.outcome


def _play(words: list[str], folder: Path, paths: ClusterPaths) -> tuple[int, Watcher]:
    """Run Ansible and log its output; return its exit code and the watcher of its events."""
    watcher, events = Watcher(), folder / "events.jsonl"
    log = watcher.outcome.log = paths.logs / time.strftime("%Y%m%d-%H%M%S-ansible.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    output, ours = os.pipe()
    runner = init_command_config(
        "ansible-playbook",
        words,
        private_data_dir=str(folder),
        host_cwd=str(paths.project.root),
        envvars=environment() | {FILE: str(events)},
        runner_mode="subprocess",
        input_fd=subprocess.DEVNULL,
        output_fd=ours,
        error_fd=ours,
        # ansible-runner's own callback would turn Ctrl-C into a failure.
        cancel_callback=lambda: False,
        fact_cache_type="memory",  # ansible.cfg's
        quiet=True,
    )
    # ansible.cfg names gpubed's callback; ansible-runner's writes events into the output.
    for name in ("ANSIBLE_STDOUT_CALLBACK", "ANSIBLE_CALLBACK_PLUGINS"):
        del runner.config.env[name]
    copying = threading.Thread(target=_copy, args=(output, log), daemon=True)
    # In a thread, which Ctrl-C does not interrupt: ansible-runner would kill Ansible and leave its
    # children. `interruption` ends all of them.
    running = threading.Thread(target=runner.run, daemon=True)
    with Follower(events, watcher.handle, Event):
        copying.start()
        running.start()
        running.join()
    os.close(ours)
    copying.join(_END_S)
    watcher.finish()
    return runner.rc, watcher


def _copy(output: int, log: Path) -> None:
    """Log Ansible's output without control sequences; of a long output, the start and the end."""
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    kept, more, end = 0, 0, b""
    with open(output, "rb", buffering=0) as pipe, log.open("w", encoding="utf-8") as file:
        while chunk := pipe.read(2**16):
            if kept < _LOG:
                kept += file.write(printable(decode(chunk)))
                file.flush()
            else:
                more += len(chunk)
                end = (end + chunk)[-_END:]
        if more > len(end):
            file.write(f"\n… {files.size(more - len(end))} left out …\n")
        file.write(printable(decode(end, final=True)))


def limited(paths: ClusterPaths, limit: str) -> list[str]:
    """Return the nodes of the rendered inventory that match an Ansible pattern, at least one."""
    words = ["ansible", "all", _inventory(paths), f"--limit={limit}"]
    done = subprocess.run(
        [*words, "--list-hosts"],
        cwd=paths.project.root,
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
    """Return the environment variables for Ansible, as `gpubed configure` sets them."""
    variables = {
        "ANSIBLE_CONFIG": str(assets() / "ansible.cfg"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "ANSIBLE_NOCOLOR": "1",
        # Ansible requires UTF-8; servers, cron and containers often have the locale C.
        "LC_ALL": "C.UTF-8",
        # Inventories of former versions lack this setting.
        "ANSIBLE_HOST_KEY_CHECKING": "True",
    }
    if strategy := os.environ.get(STRATEGY):
        variables["ANSIBLE_STRATEGY"] = strategy
    return variables


def _inventory(paths: ClusterPaths) -> str:
    # A relative path: Ansible takes a path with a comma for a list of hosts.
    return f"--inventory={paths.inventory.relative_to(paths.project.root)}"


def where(folder: Path, due: Mapping[str, Sequence[str]] | None) -> list[str]:
    """Return the options that apply roles only where they are due (`playbooks/tasks/role.yml`)."""
    if due is None:
        return []
    path = folder / "due.json"  # too long for a command line if there are many nodes
    files.write(path, json.dumps({"gpubed_due": due}).encode())
    nodes = dict.fromkeys(name for names in due.values() for name in names)
    return ["--extra-vars", f"@{path}", "--limit", ",".join(nodes)]


def _check_host_keys(paths: ClusterPaths, names: Collection[str]) -> None:
    """Raise `HostKeyMismatch` if a wrong host key made a connection fail, which Ansible hides."""

    def check(node: Node) -> None:
        try:
            greet(node, paths)
        except HostKeyMismatch:
            raise
        except GpubedError:
            pass  # the caller reports Ansible's message

    nodes = [node for node in load_allocation(paths.allocation).nodes if node.name in names]
    parallel.each(check, nodes)
