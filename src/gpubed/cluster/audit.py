"""Compares a state with its testbeds: a killed run or manual changes make them differ."""

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
        """The resource's name on the testbed; its name in the state where that records no other."""
        said = _mapping(self.inputs.get("result")).get("name") or self.inputs.get("name")
        return str(said or self.name)

    @property
    def is_data(self) -> bool:
        """Whether the resource is a volume, which holds a researcher's data."""
        return self.kind.rsplit(":", 1)[-1].lower() == "volume"


@dataclass(frozen=True)
class Audit:
    """The comparison of a state with its testbeds."""

    uuid: str | None  # the cluster's id; None where it is unknown
    asked: Testbeds  # the testbeds that were looked at; they also remove what was found
    recorded: list[Recorded]  # resources in the state that exist
    missing: list[Recorded]  # resources in the state that do not exist
    unrecorded: list[Existing]  # resources with the cluster's id that are not in the state
    elsewhere: list[Left]  # those in places that only a former specification named
    others: list[Existing]  # resources with the cluster's name and another id
    within: list[Existing]  # data that only nodes can reach and the testbed cannot list
    interrupted: list[str]  # operations that a killed run left unfinished: `creating node-1`
    unseen: list[str]  # places that could not be checked, each with the reason

    @property
    def extra(self) -> list[Existing]:
        """The unrecorded resources that may be removed: all but data, which only `down` removes."""
        return [thing for thing in self.unrecorded if not thing.data]

    @property
    def away(self) -> list[Left]:
        """The resources in `elsewhere` that are not data."""
        return [one for one in self.elsewhere if not one.thing.data]

    @property
    def clean(self) -> bool:
        """Whether state and testbeds agree; kept data does not count as a difference."""
        return not (self.missing or self.extra or self.away or self.interrupted)


def audit(stack: Stack) -> Audit:
    """Compare a cluster's state with its testbed."""
    deployment = stack.export().get("deployment", {})
    uuid, asked = uuid_of(stack), testbeds(stack)
    recorded = list(_recorded(deployment.get("resources", [])))
    found, silent = asked.existing()
    left, unasked = asked.elsewhere(uuid, found) if uuid else ([], [])
    is_there = parallel.each(partial(_is_there, asked, found), recorded)
    there = list(zip(recorded, is_there, strict=True))
    known = {resource.id for resource in recorded}
    unseen = asked.unseen(nodes(stack), nodes(stack, left=True))
    return Audit(
        uuid=uuid,
        asked=asked,
        recorded=[resource for resource, is_there in there if is_there],
        missing=[resource for resource, is_there in there if not is_there],
        unrecorded=[e for e in found if e.uuid == uuid and e.id not in known and not e.transient],
        elsewhere=[one for one in left if not one.thing.transient],
        others=[e for e in found if e.uuid != uuid],
        within=asked.data_within(),
        interrupted=[
            f"{op['type']} {op['resource']['urn'].rsplit('::', 1)[-1]}"
            for op in deployment.get("pending_operations", [])
        ],
        unseen=[*unseen, *map(str, (*silent, *unasked))],
    )


def nodes(stack: Stack, *, left: bool = False) -> set[str]:
    """Return the names of the nodes in a cluster's state that did not fail.

    With `left`, of those that failed and whose remains could not be removed.
    """
    found = set()
    for resource in _resources(stack):
        outputs = _mapping(resource.get("outputs"))
        result = _mapping(outputs.get("result"))
        if outputs.get("kind") == "node" and ("left" in result if left else "failed" not in result):
            found.add(resource["urn"].rsplit("::", 1)[-1])
    return found


def looked_up(stack: Stack) -> set[str]:
    """Return the names of the existing networks of a plugin's testbed that the cluster uses."""
    recorded = _recorded(_resources(stack))
    return {r.name for r in recorded if r.kind == "network" and registry.backend(r.backend).native}


def _resources(stack: Stack) -> list[dict[str, Any]]:
    return list(stack.export().get("deployment", {}).get("resources") or ())


def uuid_of(stack: Stack) -> str | None:
    """Return the UUID of a cluster, from its state or else from the cluster's record."""
    uuid = None
    for resource in _resources(stack):
        if resource["type"].endswith(":Identity"):
            said = _mapping(_mapping(resource.get("outputs")).get("result")).get("uuid")
            uuid = said if isinstance(said, str) else None
    return uuid or record.uuid(stack.paths)


def remember(stack: Stack) -> None:
    """Restore the UUID in the cluster's record from the state if it is lost or damaged there."""
    with suppress(Unreadable):
        if record.uuid(stack.paths):
            return
    if uuid := uuid_of(stack):
        record.keep_uuid(stack.paths, uuid)


def testbeds(stack: Stack, *wanted: Testbed) -> Testbeds:
    """Return the testbeds in a cluster's state and former ones; without any, the specification's.

    Those `wanted`, on which resources are about to be made, count as former ones.
    """
    deployment = stack.export().get("deployment", {})
    resources = list(deployment.get("resources") or ())
    of_state = {
        name
        for resource in resources
        if (name := _mapping(resource.get("outputs")).get("backend")) in backend_config.names()
    }
    of_state |= {recorded.backend for recorded in _recorded(resources)}
    noted = set(history.kinds(stack.paths)) - of_state
    recorded = frozenset(of_state | noted if deployment.get("pending_operations") else of_state)
    if not (of_state or noted):
        with suppress(GpubedError):
            of_state = {spec_backend(load(stack.paths.spec))}
    if len(noted) == 1 and not of_state:
        of_state, noted = noted, set()
    named = {testbed.backend.name: testbed for testbed in wanted}
    noted |= named.keys() - of_state

    def bound(names: set[str]) -> tuple[Testbed, ...]:
        return tuple(named.get(one) or registry.bound(one, stack.paths) for one in sorted(names))

    return Testbeds(bound(of_state), bound(noted), recorded)


def missing_data(stack: Stack, asked: Testbeds) -> list[Recorded]:
    """Return the volumes that are in a cluster's state but not on its testbed."""
    volumes = [found for found in _recorded(_resources(stack)) if found.is_data]
    native = [v for v in volumes if v.kind in registry.backend(v.backend).native]
    # Only resources made by plugins need the testbed's full list.
    found = asked.of(native[0].backend).existing() if native else []
    return [volume for volume in volumes if not _is_there(asked, found, volume)]


def unrecorded(stack: Stack, asked: Testbeds, *, transient: bool = False) -> list[Existing]:
    """Return resources with the cluster's id outside its state, without data.

    With `transient`, also running jobs, which end by themselves.
    """
    uuid = uuid_of(stack)
    if uuid is None:
        return []
    known = {r.id for r in _recorded(_resources(stack))}
    left = [e for e in asked.existing().things if e.uuid == uuid and e.id not in known]
    return [e for e in left if not e.data and (transient or not e.transient)]


def _recorded(resources: list[dict[str, Any]]) -> Iterator[Recorded]:
    for resource in resources:
        outputs, type_ = _mapping(resource.get("outputs")), resource["type"]
        if "failed" in _mapping(outputs.get("result")):
            continue  # a node that the cluster does without: nobody says that it is there
        name, package = resource["urn"].rsplit("::", 1)[-1], type_.split(":", 1)[0]
        id_, kind = resource.get("id", ""), str(outputs.get("kind", ""))
        if outputs.get("backend") in backend_config.names():
            yield Recorded(outputs["backend"], kind, name, id_, outputs)
        elif package in backend_config.names() and type_ in registry.backend(package).native:
            yield Recorded(package, type_, name, id_, outputs)


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _is_there(asked: Testbeds, found: Sequence[Existing], recorded: Recorded) -> bool:
    if recorded.kind in registry.backend(recorded.backend).native:
        return any(thing.id == recorded.id for thing in found)
    try:
        driver = asked.of(recorded.backend).driver(recorded.kind)
        return driver.read(recorded.id, recorded.inputs) is not None
    except (LookupError, TypeError, ValueError) as error:
        raise Unreadable(
            f"the state describes {recorded} in a way that this version does not know: {error!r}",
            "use the version of gpubed that made the cluster, or restore its state",
        ) from error
