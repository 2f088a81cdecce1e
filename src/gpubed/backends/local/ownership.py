"""Names and labels of a cluster's Docker objects, by which it adopts and removes them.

Names have the cluster's name and the start of its UUID, so that two checkouts can both have a
cluster `lab`. The label with the whole UUID identifies the owner.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from docker.errors import APIError, NotFound

from gpubed.backends.local import daemon
from gpubed.core.errors import GpubedError

CLUSTER = "gpubed.cluster"
NAME = "gpubed.name"
DIGEST = "gpubed.digest"
NODE = "gpubed.node"
MADE = "gpubed.made"

_GONE_WITHIN_S = 30.0


class _Thing(Protocol):
    @property
    def attrs(self) -> Any: ...


T = TypeVar("T", bound=_Thing)


@dataclass(frozen=True)
class Owner:
    """A cluster as the owner of Docker objects."""

    cluster: str
    uuid: str

    @classmethod
    def of(cls, inputs: Mapping[str, Any]) -> Owner:
        """Read the owner from a resource's inputs."""
        return cls(inputs["cluster"], inputs["uuid"])

    def name(self, thing: str) -> str:
        """Return the Docker name of one of the cluster's objects."""
        return f"gpubed-{self.cluster}-{self.uuid[:8]}-{thing}"

    def labels(self, digest: str) -> dict[str, str]:
        """Return the labels of the cluster's objects."""
        return {CLUSTER: self.uuid, NAME: self.cluster, DIGEST: digest}


def digest(inputs: Mapping[str, Any]) -> str:
    """Return a hash of inputs, which labels the object that was made from them."""
    text = json.dumps(inputs, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def labels(thing: _Thing) -> dict[str, str]:
    """Return the labels of a container, network or volume."""
    attrs = thing.attrs
    found = attrs.get("Config", attrs).get("Labels") or {}
    return dict(found)


def address(container: _Thing, network: str) -> str:
    """Return the address that a container was given on a network; empty if none."""
    attached = container.attrs["NetworkSettings"]["Networks"].get(network) or {}
    return str((attached.get("IPAMConfig") or {}).get("IPv4Address") or "")


def ours(found: T | None, inputs: Mapping[str, Any]) -> T | None:
    """Return the object with the name of a resource, if the resource's cluster owns it."""
    is_ours = found and labels(found).get(CLUSTER) == inputs["uuid"]
    return found if is_ours else None


def own(found: T | None, owner: Owner) -> T | None:
    """Return the object with a name that a cluster needs; raise GpubedError if another owns it."""
    if found is None or labels(found).get(CLUSTER) == owner.uuid:
        return found
    kind, name = type(found).__name__.lower(), found.attrs["Name"].lstrip("/")
    raise GpubedError(
        f"Docker {kind} {name} has the name that cluster {owner.cluster} needs, "
        "and does not belong to it",
        f"docker {kind} rm {name}  # if it is not needed",
    )


def remove_until_gone(find: Callable[[], T | None], remove: Callable[[T], object]) -> None:
    """Remove the object that `find` returns until there is none, also while Docker uses it."""
    deadline = time.monotonic() + _GONE_WITHIN_S
    while (found := find()) is not None:
        try:
            remove(found)
        except NotFound:
            continue
        except APIError as error:
            if not daemon.is_conflict(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.3)
