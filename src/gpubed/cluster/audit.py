"""Compares a state with its testbeds, which differ after a killed run or a manual change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpubed.core import parallel, record
from gpubed.core.errors import GpubedError
from gpubed.core.reading import Unreadable
from gpubed.engines.stack import Stack
from gpubed.spec import backend_config
from gpubed.spec.clusterspec import spec_backend
from gpubed.testbeds import history, registry
from gpubed.testbeds.base import Existing, Testbed
from gpubed.testbeds.history import Left, Testbeds
from gpubed.testbeds.specification import load


@dataclass(frozen=True)
class Recorded:
    """A resource of the testbed, as the state records it."""

    backend: str
    kind: str
    name: str
    id: str
    inputs: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.kind.rsplit(':', 1)[-1]} {self.name}"

    @property
    def called(self) -> str:
        """The name on the testbed if the state records it, else the name in the state."""
        recorded = _mapping(self.inputs.get("result")).get("name") or self.inputs.get("name")
        return str(recorded or self.name)


@dataclass(frozen=True)
class Audit:
    """The comparison of a state with its testbeds."""

    uuid: str | None  # the cluster's UUID; None if it is unknown
    testbeds: Testbeds  # the testbeds that were compared; they can remove the resources
    recorded: list[Recorded]  # resources in the state that exist
    missing: list[Recorded]  # resources in the state that do not exist
    unrecorded: list[Existing]  # resources with the cluster's UUID that are not in the state
    elsewhere: list[Left]  # such resources in places that only a former specification names
    others: list[Existing]  # resources with the cluster's name and another UUID
    within: list[Existing]  # data that only nodes can reach and the testbed cannot list
    interrupted: list[str]  # operations that a killed run left unfinished: `creating node-1`
    unseen: list[str]  # places that could not be checked, each with the reason

    @property
    def extra(self) -> list[Existing]:
        """The unrecorded resources except data; only `down` removes data."""
        return [thing for thing in self.unrecorded if not thing.data]

    @property
    def away(self) -> list[Left]:
        """The resources in `elsewhere` that are not data."""
        return [left for left in self.elsewhere if not left.thing.data]

    @property
    def clean(self) -> bool:
        """Whether state and testbeds agree; kept data does not count as a difference."""
        return not (self.missing or self.extra or self.away or self.interrupted)


def audit(stack: Stack) -> Audit:
    """Compare a cluster's state with its testbeds."""
    deployment = stack.export().get("deployment", {})
    uuid, bound = uuid_of(stack), testbeds(stack)
    recorded = list(_recorded(deployment.get("resources", [])))
    existing, silent = bound.existing()
    elsewhere, unasked = bound.elsewhere(uuid, existing) if uuid else ([], [])
    exists = parallel.each(partial(_exists, bound, existing), recorded)
    checked = list(zip(recorded, exists, strict=True))
    ids = {resource.id for resource in recorded}
    unseen = bound.unseen(nodes(stack), nodes(stack, left=True))
    return Audit(
        uuid=uuid,
        testbeds=bound,
        recorded=[resource for resource, exists in checked if exists],
        missing=[resource for resource, exists in checked if not exists],
        unrecorded=[e for e in existing if e.uuid == uuid and e.id not in ids and not e.transient],
        elsewhere=[left for left in elsewhere if not left.thing.transient],
        others=[e for e in existing if e.uuid != uuid],
        within=bound.data_within(),
        interrupted=[
            f"{op['type']} {op['resource']['urn'].rsplit('::', 1)[-1]}"
            for op in deployment.get("pending_operations", [])
        ],
        unseen=[*unseen, *map(str, (*silent, *unasked))],
    )


def nodes(stack: Stack, *, left: bool = False) -> set[str]:
    """Return the names of the nodes in a cluster's state that did not fail.

    With `left`, return those that failed and could not be removed completely.
    """
    names = set()
    for resource in _resources(stack):
        outputs = _mapping(resource.get("outputs"))
        result = _mapping(outputs.get("result"))
        if outputs.get("kind") == "node" and ("left" in result if left else "failed" not in result):
            names.add(resource["urn"].rsplit("::", 1)[-1])
    return names


def looked_up(stack: Stack) -> set[str]:
    """Return the names of the networks that the cluster uses but Pulumi's plugin did not make."""
    recorded = _recorded(_resources(stack))
    return {r.name for r in recorded if r.kind == "network" and registry.backend(r.backend).native}


def _resources(stack: Stack) -> list[dict[str, Any]]:
    return list(stack.export().get("deployment", {}).get("resources") or ())


def uuid_of(stack: Stack) -> str | None:
    """Return the UUID of a cluster, from its state or else from the cluster's record."""
    for resource in _resources(stack):
        if resource["type"].endswith(":Identity"):
            uuid = _mapping(_mapping(resource.get("outputs")).get("result")).get("uuid")
            if uuid and isinstance(uuid, str):
                return uuid
    return record.uuid(stack.paths)


def remember(stack: Stack) -> None:
    """Restore the UUID in the cluster's record from the state if it is lost or damaged there."""
    with suppress(Unreadable):
        if record.uuid(stack.paths):
            return
    if uuid := uuid_of(stack):
        record.keep_uuid(stack.paths, uuid)


def testbeds(stack: Stack, *wanted: Testbed) -> Testbeds:
    """Return the testbeds in a cluster's state and former ones; without any, the specification's.

    `wanted` are testbeds on which resources are about to be made; they count as former ones.
    """
    deployment = stack.export().get("deployment", {})
    resources = list(deployment.get("resources") or ())
    present = {
        name
        for resource in resources
        if (name := _mapping(resource.get("outputs")).get("backend")) in backend_config.names()
    }
    present |= {recorded.backend for recorded in _recorded(resources)}
    former = set(history.kinds(stack.paths)) - present
    recorded = frozenset(present | former if deployment.get("pending_operations") else present)
    if not (present or former):
        with suppress(GpubedError):
            present = {spec_backend(load(stack.paths.spec))}
    if len(former) == 1 and not present:
        present, former = former, set()
    by_name = {testbed.backend.name: testbed for testbed in wanted}
    former |= by_name.keys() - present

    def bound(names: set[str]) -> tuple[Testbed, ...]:
        return tuple(by_name.get(n) or registry.bound(n, stack.paths) for n in sorted(names))

    return Testbeds(bound(present), bound(former), recorded)


def missing_data(stack: Stack, testbeds: Testbeds) -> list[Recorded]:
    """Return the volumes that are in a cluster's state but not on its testbed."""
    recorded = _recorded(_resources(stack))
    volumes = [r for r in recorded if r.kind.rsplit(":", 1)[-1].lower() == "volume"]
    native = [v for v in volumes if v.kind in registry.backend(v.backend).native]
    # Only resources of a plugin are looked up in the testbed's full list.
    existing = testbeds.of(native[0].backend).existing() if native else []
    return [volume for volume in volumes if not _exists(testbeds, existing, volume)]


def unrecorded(stack: Stack, testbeds: Testbeds, *, transient: bool = False) -> list[Existing]:
    """Return the resources, except data, that have the cluster's UUID and are not in its state.

    With `transient`, includes running jobs, which end by themselves.
    """
    uuid = uuid_of(stack)
    if uuid is None:
        return []
    ids = {r.id for r in _recorded(_resources(stack))}
    left = [e for e in testbeds.existing().things if e.uuid == uuid and e.id not in ids]
    return [e for e in left if not e.data and (transient or not e.transient)]


def _recorded(resources: list[dict[str, Any]]) -> Iterator[Recorded]:
    for resource in resources:
        outputs, type_ = _mapping(resource.get("outputs")), resource["type"]
        if "failed" in _mapping(outputs.get("result")):
            continue  # a node that failed and that the cluster does without
        name, package = resource["urn"].rsplit("::", 1)[-1], type_.split(":", 1)[0]
        id_, kind = resource.get("id", ""), str(outputs.get("kind", ""))
        if outputs.get("backend") in backend_config.names():
            yield Recorded(outputs["backend"], kind, name, id_, outputs)
        elif package in backend_config.names() and type_ in registry.backend(package).native:
            yield Recorded(package, type_, name, id_, outputs)


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _exists(testbeds: Testbeds, existing: Sequence[Existing], recorded: Recorded) -> bool:
    if recorded.kind in registry.backend(recorded.backend).native:
        return any(thing.id == recorded.id for thing in existing)
    try:
        driver = testbeds.of(recorded.backend).driver(recorded.kind)
        return driver.read(recorded.id, recorded.inputs) is not None
    except (LookupError, TypeError, ValueError) as error:
        raise Unreadable(
            f"the state describes {recorded} in a form that this version cannot read: {error!r}",
            "use the version of gpubed that made the cluster, or restore its state",
        ) from error
