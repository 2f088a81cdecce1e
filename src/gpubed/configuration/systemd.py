"""Finds units of roles that do not run on a node, and files of roles that are missing there."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpubed.configuration.roles import Unit
from gpubed.core import reading
from gpubed.nodes.allocation import Node
from gpubed.nodes.ssh import SSH

MISSING = "missing"
# Prints a block per unit, in the order of the arguments. `Job` is set while a unit starts or is
# queued, as after a boot, but not while it waits for a restart after a failure.
_ASK = (
    "sudo -n timeout --signal=KILL 10 systemctl show --no-pager"
    " --property=LoadState,ActiveState,UnitFileState,ConditionResult,Job -- %s"
)
_LOST = 'for file in %s; do [ -e "$file" ] || printf "%%s\\n" "$file"; done'
_LONGEST = 40  # characters of a state that are shown
_RUNNING = {"active", "reloading", "refreshing"}


@dataclass(frozen=True)
class Stopped:
    """A unit that should run and does not, or a file that is missing."""

    role: str  # the role that declares it
    unit: str  # the unit's name or the file's path
    node: str
    # systemd's word: inactive, failed, activating (restarted again and again), missing, unknown
    state: str

    @property
    def why(self) -> str:
        """A sentence with unit, node and state."""
        return f"{self.unit} on {self.node} is {self.state}"


def stopped(ssh: SSH, node: Node, units: Sequence[Unit]) -> list[Stopped]:
    """Return a node's units (of `roles.units`) that do not run and files that are missing."""
    there = [unit for unit in units if unit.node in (node.name, None)]
    wanted, files = ([one for one in there if one.is_file is kind] for kind in (False, True))
    states: list[tuple[Unit, str]] = []
    if wanted:
        said = ssh.run(_ASK % shlex.join(unit.name for unit in wanted), check=False).stdout
        blocks = [
            dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
            for block in said.strip().split("\n\n")
        ]
        blocks += [{}] * (len(wanted) - len(blocks))
        states += [(unit, _wrong(told, unit)) for unit, told in zip(wanted, blocks, strict=False)]
    if files:
        gone = ssh.run(_LOST % shlex.join(file.name for file in files), check=False).stdout
        states += [(file, MISSING) for file in files if file.name in gone.splitlines()]
    return [Stopped(unit.role, unit.name, node.name, state) for unit, state in states if state]


def _wrong(told: Mapping[str, str], unit: Unit) -> str:
    """Return the state of a unit that should run and does not, or "" if all is well."""
    if unit.where_enabled and (
        told.get("UnitFileState") != "enabled" or told.get("ConditionResult") == "no"
    ):
        return ""
    state = told.get("ActiveState", "unknown")
    if state in _RUNNING or told.get("Job", "0") not in ("", "0"):
        return ""
    return MISSING if told.get("LoadState") == "not-found" else reading.short(state, _LONGEST)
