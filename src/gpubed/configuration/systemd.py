"""Finds units of roles that do not run on a node, and files of roles that are missing."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpubed.configuration.roles import Unit
from gpubed.core import reading
from gpubed.nodes.allocation import Node
from gpubed.nodes.ssh import SSH

MISSING = "missing"
# Prints a block per unit, in the order of the arguments. `Job` is set while a unit is queued or
# starts, as after a boot, but not while it waits for a restart after a failure.
_SHOW = (
    "sudo -n timeout --signal=KILL 10 systemctl show --no-pager"
    " --property=LoadState,ActiveState,UnitFileState,ConditionResult,Job -- %s"
)
_MISSING = 'for file in %s; do [ -e "$file" ] || printf "%%s\\n" "$file"; done'
_LONGEST = 40  # characters of a state that are shown
_RUNNING = {"active", "reloading", "refreshing"}


@dataclass(frozen=True)
class Stopped:
    """A unit that should run and does not, or a file that is missing."""

    role: str  # the role that declares it
    unit: str  # the unit's name or the file's path
    node: str
    state: str  # ActiveState; activating: restarted again and again; or `missing`, `unknown`

    @property
    def why(self) -> str:
        """A sentence with unit, node and state."""
        return f"{self.unit} on {self.node} is {self.state}"


def stopped(ssh: SSH, node: Node, units: Sequence[Unit]) -> list[Stopped]:
    """Return the stopped units and missing files of a node, out of those of `roles.units`."""
    declared = [unit for unit in units if unit.node in (node.name, None)]
    services, files = (
        [unit for unit in declared if unit.is_file is kind] for kind in (False, True)
    )
    states: list[tuple[Unit, str]] = []
    if services:
        output = ssh.run(_SHOW % shlex.join(unit.name for unit in services), check=False).stdout
        blocks = [
            dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
            for block in output.strip().split("\n\n")
        ]
        blocks += [{}] * (len(services) - len(blocks))
        states += [
            (unit, _fault(unit, block)) for unit, block in zip(services, blocks, strict=False)
        ]
    if files:
        missing = ssh.run(_MISSING % shlex.join(file.name for file in files), check=False).stdout
        states += [(file, MISSING) for file in files if file.name in missing.splitlines()]
    return [Stopped(unit.role, unit.name, node.name, state) for unit, state in states if state]


def _fault(unit: Unit, properties: Mapping[str, str]) -> str:
    """Return the state of a unit that should run and does not; empty if it runs or need not."""
    if unit.where_enabled and (
        properties.get("UnitFileState") != "enabled" or properties.get("ConditionResult") == "no"
    ):
        return ""
    state = properties.get("ActiveState", "unknown")
    if state in _RUNNING or properties.get("Job", "0") not in ("", "0"):
        return ""
    return MISSING if properties.get("LoadState") == "not-found" else reading.short(state, _LONGEST)
