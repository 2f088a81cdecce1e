"""Counts a testbed's machines, and compares them with a plan.

The advertisement has hardware types, but no GPUs: their number follows from the type's name
(`…-gpu1080`), or from `backend.gpus`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from gpubed.backends.virtualwall import documents, faults, journal, rspec
from gpubed.backends.virtualwall.config import Config
from gpubed.backends.virtualwall.connection import Connection, connect
from gpubed.backends.virtualwall.faults import Answered
from gpubed.backends.virtualwall.slice_inputs import digest
from gpubed.core.errors import GpubedError, PrerequisiteMissing
from gpubed.core.paths import ClusterPaths
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds.base import Finding, Offer

_GPU = re.compile(r"gpu-?([a-z0-9]+)$", re.IGNORECASE)
_WHOLE, _VIRTUAL = "raw-pc", {"emulab-xen", "default-vm", "emulab-openvz", "docker-container"}
_ANY_TYPE, _UNTYPED = "(any)", "without a hardware type: name none in backend.hardware"
_ANY = frozenset({"pc", "lan", "switch", "delay", "pcvm"})  # types that every machine has


@dataclass(frozen=True)
class Machine:
    """A machine with its component id and hardware types; GCF's machines have none.

    `is_whole` tells whether it is granted as a whole (raw-pc, or a sliver type unknown to gpubed).
    """

    id: str
    types: tuple[str, ...]
    free: bool
    is_whole: bool


def offers(config: Config) -> list[Offer]:
    """Return the testbed's machines by hardware type."""
    return counted(machines(connect(config).advertisement()), config.gpus)


def images(there: Connection) -> tuple[list[str], list[str]]:
    """Return the names of the testbed's disk images, and those of its default ones."""
    root = documents.parse(there.advertisement(), "the advertisement")
    found = documents.children(root, "node", "sliver_type", "disk_image")
    names = {faults.clean(image.get("name")) for image in found}
    default = {faults.clean(i.get("name")) for i in found if i.get("default") == "true"}
    return sorted(names), sorted(default)


def refusals(plan: ClusterPlan, paths: ClusterPaths) -> list[Finding]:
    """Return why the testbed cannot grant a plan's `min` nodes now; also if it does not answer.

    Machines that the cluster holds count as free.
    """
    config, known = Config.of(plan.spec.backend), journal.load(paths)
    if known and known.slivers and known.request == digest(rspec.request(plan)):
        return []
    fix = f"gpubed resources {plan.cluster} lists what is free"
    try:
        there = connect(config)
        held = frozenset[str]()
        with suppress(Answered):
            if known and known.slivers and (ours := there.describe(known.slice_urn)):
                held = documents.machines(ours.manifest)
        found = machines(there.advertisement())
        found = [replace(machine, free=machine.free or machine.id in held) for machine in found]
        lacks = _shortages(plan, config, found)
    except PrerequisiteMissing:
        raise
    except GpubedError as error:
        lacks, fix = [error.message], error.hint or fix
    return [Finding("virtualwall.supply", False, why, fix) for why in lacks]


def machines(text: str) -> list[Machine]:
    """Read an advertisement; raise Malformed if it is another document."""
    root = documents.rspec(text, "advertisement")
    return [_machine(element) for element in documents.children(root, "node")]


def counted(machines: list[Machine], gpus: Mapping[str, int]) -> list[Offer]:
    """Count machines by hardware type, with GPUs first; `gpus` has the GPUs of types."""
    by_type: dict[str, list[Machine]] = defaultdict(list)
    for machine in machines:
        untyped = (_ANY_TYPE,) if machine.is_whole else ()
        for type_ in dict.fromkeys(machine.types or untyped):
            by_type[type_].append(machine)
    found = []
    for type_, of_type in by_type.items():
        match = _GPU.search(type_)
        count, model = gpus.get(type_, 1 if match else 0), match[1].upper() if match else ""
        is_whole = any(machine.is_whole for machine in of_type)
        note = _UNTYPED if type_ == _ANY_TYPE else "" if is_whole else "virtual machines only"
        free = sum(machine.free for machine in of_type)
        found.append(Offer(type_, len(of_type), free, count, model, note))
    return sorted(found, key=lambda offer: (not offer.gpus, offer.name))


def _shortages(plan: ClusterPlan, config: Config, machines: list[Machine]) -> list[str]:
    is_free = {machine.id: machine.free for machine in machines}
    wanted: Counter[str] = Counter()
    found = []
    for group in plan.spec.nodes:
        hardware = config.hardware.get(group.name)
        for machine in hardware.machines if hardware else ():
            if not is_free.get(machine, False):
                state = "not free" if machine in is_free else "unknown to the testbed"
                found.append(f"{machine} is {state}")
        if hardware is None or (hardware.sliver == _WHOLE and not hardware.machines):
            type_ = (hardware and hardware.type) or ""
            wanted["" if type_ in _ANY else type_] += group.least
    any_kind = wanted.pop("", 0)
    left = sum(machine.free and machine.is_whole for machine in machines) - wanted.total()
    if any_kind > max(0, left):
        found.append(f"{any_kind} machines of any type are wanted, {max(0, left)} are free")
    for type_, count in wanted.items():
        of_type = [machine.free for machine in machines if type_ in machine.types]
        if not of_type:
            found.append(f"the testbed has no hardware type {type_!r}")
        elif sum(of_type) < count:
            found.append(f"{count} machines of type {type_} are wanted, {sum(of_type)} are free")
    return found


def _machine(element: Any) -> Machine:
    names = [kind.get("name", "") for kind in documents.children(element, "hardware_type")]
    now = [child.get("now", "true") for child in documents.children(element, "available")]
    slivers = {kind.get("name") for kind in documents.children(element, "sliver_type")}
    return Machine(
        id=element.get("component_id", ""),
        types=tuple(name for name in names if name and name not in _ANY),
        free="false" not in now,
        is_whole=_WHOLE in slivers or not slivers & _VIRTUAL,
    )
