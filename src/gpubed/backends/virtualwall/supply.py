"""What the testbed has, and whether a plan can be had now."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from gpubed.backends.virtualwall import advertisement, journal, manifest, rspec
from gpubed.backends.virtualwall.advertisement import Machine
from gpubed.backends.virtualwall.config import Config
from gpubed.backends.virtualwall.connection import Connection, connect
from gpubed.backends.virtualwall.faults import Answered, Busy
from gpubed.backends.virtualwall.patience import Patience
from gpubed.backends.virtualwall.slice_inputs import digest
from gpubed.core.errors import GpubedError, PrerequisiteMissing
from gpubed.core.paths import ClusterPaths
from gpubed.spec.clusterspec import ClusterSpec
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds.base import Finding, Offer

_LOOK_S = 120.0


def offers(spec: ClusterSpec) -> list[Offer]:
    """Return the testbed's machines by hardware type."""
    config = spec.backend
    assert isinstance(config, Config)  # noqa: S101
    return advertisement.offers(_machines(connect(config), config), config.gpus)


def images(there: Connection) -> tuple[list[str], list[str]]:
    """Return the disk images that the testbed offers, and those that are its default."""
    return advertisement.images(_advertisement(there, there.config))


def refusals(plan: ClusterPlan, paths: ClusterPaths) -> list[Finding]:
    """Return why what is planned cannot be had now; see `shortages`."""
    fix = f"gpubed resources {plan.cluster} lists what is free"
    return [Finding("virtualwall.supply", False, why, fix) for why in shortages(plan, paths)]


def shortages(plan: ClusterPlan, paths: ClusterPaths) -> list[str]:
    """Return why a plan cannot be had now: the fewest nodes that will do are counted.

    What the cluster holds already is not asked for again, or is free for what replaces it. A
    testbed that does not answer is a reason too.

    Raises:
        PrerequisiteMissing: It cannot be asked from here, now or later.
    """
    config = plan.spec.backend
    assert isinstance(config, Config)  # noqa: S101
    known = journal.load(paths)
    if known and known.slivers and known.request == digest(rspec.request(plan)):
        return []
    try:
        there = connect(config)
        machines = _machines(there, config)
        held = _held(there, known.slice_urn) if known and known.slivers else frozenset()
    except PrerequisiteMissing:
        raise
    except GpubedError as error:
        return [error.message]
    ours = [replace(machine, free=machine.free or machine.id in held) for machine in machines]
    return _compared(plan, config, ours)


def _compared(plan: ClusterPlan, config: Config, machines: list[Machine]) -> list[str]:
    free = Counter(type_ for machine in machines if machine.free for type_ in machine.types)
    known = {type_ for machine in machines for type_ in machine.types}
    is_free = {machine.id: machine.free for machine in machines}
    wanted: Counter[str] = Counter()
    found, any_kind = [], 0
    for group in plan.spec.nodes:
        hardware = config.hardware.get(group.name)
        for machine in hardware.machines if hardware else ():
            if not is_free.get(machine, False):
                state = "not free" if machine in is_free else "unknown to the testbed"
                found.append(f"{machine} is {state}")
        if hardware and (hardware.sliver != "raw-pc" or hardware.machines):
            continue
        if hardware and hardware.type and hardware.type not in advertisement.ANY:
            wanted[hardware.type] += group.least
        else:
            any_kind += group.least
    left = sum(machine.free and machine.is_whole for machine in machines) - wanted.total()
    if any_kind and any_kind > left:
        found.append(f"{any_kind} machines of any type are wanted, {max(0, left)} are free")
    for type_, count in wanted.items():
        if type_ not in known:
            found.append(f"the testbed has no hardware type {type_!r}")
        elif free[type_] < count:
            found.append(f"{count} machines of type {type_} are wanted, {free[type_]} are free")
    return found


def _machines(there: Connection, config: Config) -> list[Machine]:
    return advertisement.read(_advertisement(there, config))


def _advertisement(there: Connection, config: Config) -> str:
    patience = _patience(config)
    credentials = patience.insist(there.authority.credentials)
    return patience.insist(lambda: there.aggregate.advertisement(credentials, available=False))


def _held(there: Connection, slice_urn: str) -> frozenset[str]:
    """Return the machines of a slice; none where it has ended."""
    patience = _patience(there.config)
    try:
        credentials = patience.insist(lambda: there.authority.slice_credentials(slice_urn))
        found = patience.insist(lambda: there.aggregate.describe(slice_urn, credentials))
    except Busy:
        raise
    except Answered:
        return frozenset()
    return manifest.machines(found.manifest) if found else frozenset()


def _patience(config: Config) -> Patience:
    return Patience.of(config, min(_LOOK_S, config.patience))
