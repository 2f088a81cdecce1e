"""The advertisement: which machines a testbed has, and which of them are free.

It names hardware types, not GPUs: how many a type has is read from its name
(`…-gpu1080`), or told by `backend.gpus`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from gpubed.backends.base import Offer
from gpubed.backends.virtualwall import documents
from gpubed.backends.virtualwall.faults import Malformed

_GPU = re.compile(r"gpu-?([a-z0-9]+)$", re.IGNORECASE)
_ANY = {"pc", "lan", "switch", "delay", "pcvm"}  # kinds that every machine is


@dataclass(frozen=True)
class Machine:
    """One machine: its component id, its types (nearest first), and whether it is free."""

    id: str
    types: tuple[str, ...]
    free: bool
    whole: bool


def read(text: str) -> list[Machine]:
    """Read an advertisement.

    Raises:
        Malformed: It is none.
    """
    root = documents.parse(text, "the advertisement")
    if documents.local(root) != "rspec" or root.get("type") != "advertisement":
        raise Malformed("the testbed answered with something else than an advertisement")
    return [_machine(element) for element in documents.children(root, "node")]


def offers(machines: list[Machine], gpus: Mapping[str, int]) -> list[Offer]:
    """Count machines by hardware type; types with GPUs come first.

    Args:
        gpus: GPUs per machine of types whose names do not tell.
    """
    by_type: dict[str, list[Machine]] = defaultdict(list)
    for machine in machines:
        for type_ in dict.fromkeys(machine.types):
            by_type[type_].append(machine)
    found = []
    for type_, of_type in by_type.items():
        count, model = _gpus(type_, gpus)
        note = "" if any(machine.whole for machine in of_type) else "virtual machines only"
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
        if (name := kind.get("name", "")) and name not in _ANY
    ]
    now = [child.get("now", "true") for child in documents.children(element, "available")]
    slivers = {child.get("name") for child in documents.children(element, "sliver_type")}
    get = element.get  # type: ignore[attr-defined]
    return Machine(get("component_id", ""), tuple(types), "false" not in now, "raw-pc" in slivers)
