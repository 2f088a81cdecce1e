"""Which runtime a node has."""

from __future__ import annotations

from gpubed.backends.local.container import SystemContainer
from gpubed.backends.local.node_inputs import NodeInputs
from gpubed.backends.local.runtime import Runtime
from gpubed.backends.local.vm.machine import VirtualMachine


def of(node: NodeInputs) -> Runtime:
    """Return the runtime that a node asks for."""
    return VirtualMachine() if node.runtime == "vm" else SystemContainer()
