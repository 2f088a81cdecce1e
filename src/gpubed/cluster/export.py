"""Exports a cluster for use with other tools.

`ssh-config` and `inventory` need a cluster that is up; `rspec` and `espec` need only a
specification, and a testbed with that format.
"""

from __future__ import annotations

from typing import Literal, get_args

from gpubed.configuration import inventory
from gpubed.core.paths import ClusterPaths
from gpubed.nodes import allocation as allocations
from gpubed.testbeds import registry
from gpubed.testbeds.specification import load_plan

Kind = Literal["espec", "rspec", "ssh-config", "inventory"]
KINDS: tuple[str, ...] = get_args(Kind)


def export(paths: ClusterPaths, kind: Kind) -> dict[str, str]:
    """Return the contents of an export's files by name; the first is the requested file."""
    if kind == "ssh-config":
        allocation = allocations.load(paths.allocation)
        return {"ssh_config": inventory.ssh_config(allocation, paths)}
    if kind == "inventory":
        return {"hosts.yml": inventory.text(allocations.load(paths.allocation))}
    plan = load_plan(paths.spec)
    backend = registry.backend(plan.backend)
    if kind == "rspec":
        return {f"{paths.name}.rspec": backend.export(plan, kind)}
    return {
        "experiment-specification.yml": backend.export(plan, "espec"),
        "cluster.rspec": backend.export(plan, "rspec"),
    }
