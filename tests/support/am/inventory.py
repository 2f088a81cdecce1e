"""What the site has: machines by hardware type, and which slice holds them."""

import time
from collections import Counter
from dataclasses import dataclass

from . import answers

PC = "pc"
# By hardware type: how many machines, and the first part of their names.
HARDWARE = {
    "pcgen05": (8, "n095"),
    "pcgen07-1p": (4, "n078"),
    "pcgen07-gpu1080": (3, "n079"),
    "pcgen08-gpu5090": (2, "n083"),
}


@dataclass
class Machine:
    """A machine; `holder` is the slice that has it, `broken` takes it out of service.

    Emulab loads what was given back anew, and has it for nobody until `loaded`.
    """

    name: str
    type: str
    holder: str | None = None
    broken: bool = False
    loaded: float = 0.0

    @property
    def is_free(self):
        return self.holder is None and not self.broken and self.loaded <= time.monotonic()


class Inventory:
    """All machines."""

    def __init__(self, reload=0.0):
        self._reload = reload
        self.machines = [
            Machine(f"{rack}-{number:02d}", kind)
            for kind, (count, rack) in HARDWARE.items()
            for number in range(1, count + 1)
        ]

    def map(self, nodes, holder):
        """Returns a machine for each node by client_id, or refuses all, in the mapper's words."""
        given = {node.client_id: self._fixed(node) for node in nodes if node.machine}
        for kind, count in Counter(node.type for node in nodes if not node.machine).items():
            free = [m for m in self.machines if m.is_free and kind in (m.type, PC)]
            left = [m for m in free if m not in given.values()]
            if len(left) < count:
                raise answers.Refusal(answers.INSUFFICIENT_NODES, _short(kind, count, len(left)))
            wanted = [n.client_id for n in nodes if n.type == kind and not n.machine]
            given |= dict(zip(wanted, left, strict=False))
        for machine in given.values():
            machine.holder = holder
        return given

    def release(self, machine):
        machine.holder, machine.loaded = None, time.monotonic() + self._reload

    def _fixed(self, node):
        machine = next((m for m in self.machines if m.name == node.machine), None)
        if machine is None:
            raise answers.Refusal(answers.BADARGS, f"Bad resource {node.machine}")
        if not machine.is_free:
            text = f"*** Fixed node: Could not map {node.client_id} to {node.machine}"
            raise answers.Refusal(answers.NO_MAPPING, text)
        return machine


def _short(kind, wanted, free):
    if not free:
        return f"*** No available physical nodes of type {kind} found"
    return (
        f"*** {wanted} nodes of type {kind} requested, "
        f"but only {free} available nodes of type {kind} found"
    )
