"""The advertisement: which machines a testbed has, and which of them are free.

It names hardware types, not GPUs: how many a type has is read from its name
(`…-gpu1080`), or told by `backend.gpus`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from gpubed.backends.virtualwall import documents, faults
from gpubed.backends.virtualwall.faults import Malformed
from gpubed.testbeds.base import Offer

_GPU = re.compile(r"gpu-?([a-z0-9]+)$", re.IGNORECASE)
_WHOLE, _VIRTUAL = "raw-pc", {"emulab-xen", "default-vm", "emulab-openvz", "docker-container"}
_ANY_TYPE, _UNTYPED = "(any)", "without a hardware type: name none in backend.hardware"
ANY = frozenset({"pc", "lan", "switch", "delay", "pcvm"})  # kinds that every machine is


@dataclass(frozen=True)
class Machine:
    """One machine.

    Attributes:
        id: Its component id.
        types: Its hardware types, nearest first; the reference aggregate names none.
        free: Whether it can be had now.
        slivers: What can be had of it: the whole machine (raw-pc), or virtual ones.
    """

    id: str
    types: tuple[str, ...]
    free: bool
    slivers: frozenset[str]

    @property
    def is_whole(self) -> bool:
        """Whether it is given as a whole, or as something that we know nothing of."""
        return _WHOLE in self.slivers or not self.slivers & _VIRTUAL


def read(text: str) -> list[Machine]:
    """Read an advertisement.

    Raises:
        Malformed: It is none.
    """
    root = documents.parse(text, "the advertisement")
    if documents.local(root) != "rspec" or root.get("type") != "advertisement":
        raise Malformed("the testbed answered with something else than an advertisement")
    return [_machine(element) for element in documents.children(root, "node")]


def images(text: str) -> tuple[list[str], list[str]]:
    """Return the disk images that an advertisement offers, and those that are the default.

    Raises:
        Malformed: It is none.
    """
    root = documents.parse(text, "the advertisement")
    found = [
        (faults.clean(image.get("name")), image.get("default") == "true")
        for node in documents.children(root, "node")
        for kind in documents.children(node, "sliver_type")
        for image in documents.children(kind, "disk_image")
    ]
    return sorted({name for name, _ in found}), sorted({name for name, first in found if first})


def offers(machines: list[Machine], gpus: Mapping[str, int]) -> list[Offer]:
    """Count machines by hardware type; types with GPUs come first.

    Args:
        gpus: GPUs per machine of types whose names do not tell.
    """
    by_type: dict[str, list[Machine]] = defaultdict(list)
    for machine in machines:
        untyped = (_ANY_TYPE,) if machine.is_whole else ()
        for type_ in dict.fromkeys(machine.types or untyped):
            by_type[type_].append(machine)
    found = []
    for type_, of_type in by_type.items():
        count, model = _gpus(type_, gpus)
        is_whole = any(machine.is_whole for machine in of_type)
        note = _UNTYPED if type_ == _ANY_TYPE else "" if is_whole else "virtual machines only"
        free = sum(machine.free for machine in of_type)
        found.append(Offer(type_, len(of_type), free, count, model, note))
    return sorted(found, key=lambda offer: (not offer.gpus, offer.name))


def _gpus(type_: str, told: Mapping[str, int]) -> tuple[int, str]:
    match = _GPU.search(type_)
    return told.get(type_, 1 if match else 0), match[1].upper() if match else ""


def _machine(element: object) -> Machine:
    types = [
        name
        for kind in documents.children(element, "hardware_type")
        if (name := kind.get("name", "")) and name not in ANY
    ]
    now = [child.get("now", "true") for child in documents.children(element, "available")]
    kinds = documents.children(element, "sliver_type")
    slivers = frozenset(str(child.get("name")) for child in kinds)
    get = element.get  # type: ignore[attr-defined]
    return Machine(get("component_id", ""), tuple(types), "false" not in now, slivers)
