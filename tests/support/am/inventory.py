"""What the site has: machines by hardware type, and who holds them."""

import time
from collections import Counter
from dataclasses import dataclass

from . import answers

PC, VM = "pc", "pcvm"


@dataclass(frozen=True)
class HardwareType:
    """Machines of one kind.

    Attributes:
        name: As requests say it; a testbed's GPU machines have the GPU in their type's name.
        count: How many there are.
        rack: First part of their names, `n061-01`.
        cpus: Of one machine; also the limit of a real node.
        memory: Bytes of one machine; also the limit of a real node.
        gpus: GPUs of one machine.
        virtual: Whether they are virtual machines on shared hosts.
    """

    name: str
    count: int
    rack: str
    cpus: int = 1
    memory: int = 1 << 30
    gpus: int = 0
    virtual: bool = False


HARDWARE = (
    HardwareType("pcgen05", 8, "n095", cpus=4, memory=16 << 30),
    HardwareType("pcgen07-1p", 4, "n078", cpus=6, memory=64 << 30),
    HardwareType("pcgen07-gpu1080", 3, "n079", cpus=6, memory=64 << 30, gpus=1),
    HardwareType("pcgen08-gpu5090", 2, "n083", cpus=16, memory=500 << 30, gpus=2),
    HardwareType(VM, 16, "n061", cpus=1, memory=2 << 30, virtual=True),
)


@dataclass
class Machine:
    """A machine; `holder` is the slice that has it, `broken` takes it out of service.

    Emulab loads what was given back anew, and has it for nobody until `loaded`.
    """

    name: str
    type: HardwareType
    holder: str | None = None
    broken: bool = False
    loaded: float = 0.0

    @property
    def is_free(self):
        """Whether it can be given away now."""
        return self.holder is None and not self.broken and self.loaded <= time.monotonic()

    @property
    def type_names(self):
        """The types that a request may call it by."""
        return (self.type.name,) if self.type.virtual else (self.type.name, PC)


class Inventory:
    """All machines."""

    def __init__(self, hardware=HARDWARE, reload=0.0):
        self._reload = reload
        self.machines = [
            Machine(f"{kind.rack}-{number:02d}", kind)
            for kind in hardware
            for number in range(1, kind.count + 1)
        ]

    def machine(self, name):
        """Returns a machine by name, or None."""
        return next((m for m in self.machines if m.name == name), None)

    def free(self, type_name):
        """Returns the machines of a type that nobody has."""
        return [m for m in self.machines if m.is_free and type_name in m.type_names]

    def map(self, nodes, holder):
        """Gives each node a machine, or none of them any: as the mapper does.

        Args:
            nodes: Of a request.
            holder: URN of the slice.

        Returns:
            Machine by client_id.

        Raises:
            Refusal: There are not enough; the text is the mapper's.
        """
        given = {node.client_id: self._fixed(node) for node in nodes if node.machine}
        for kind, count in Counter(node.type for node in nodes if not node.machine).items():
            left = [m for m in self.free(kind) if m not in given.values()]
            if len(left) < count:
                raise answers.Refusal(answers.INSUFFICIENT_NODES, _short(kind, count, len(left)))
            wanted = [n.client_id for n in nodes if n.type == kind and not n.machine]
            given |= dict(zip(wanted, left, strict=False))
        for machine in given.values():
            machine.holder = holder
        return given

    def release(self, machine):
        """Takes a machine back."""
        machine.holder, machine.loaded = None, time.monotonic() + self._reload

    def _fixed(self, node):
        machine = self.machine(node.machine)
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
