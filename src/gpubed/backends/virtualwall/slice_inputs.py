"""The inputs of a slice, its labels, and the results of its nodes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from gpubed.backends.virtualwall import documents, rspec
from gpubed.backends.virtualwall.config import Config
from gpubed.backends.virtualwall.connection import Description
from gpubed.core.errors import Refused
from gpubed.spec.plan import ClusterPlan

Results = dict[str, dict[str, Any]]
"""For each node: the fields of `Given`, or for a failed node the reason (`failed`), `sliver`,
`linked` (whether a network was requested), and `booting` (whether its state is not final)."""

_NO_NETWORK = (
    "the testbed did not grant it the experiment network that was asked for "
    "(networks: {experiment: null}, with a backend.bastion, does without one)"
)


class TooFew(Refused):
    """The testbed lacks the head, or a group's `min` nodes."""


class Group(BaseModel):
    """Nodes of a group; at least `min` are needed, `type` is the requested hardware type."""

    nodes: tuple[str, ...]
    min: int
    type: str = ""
    on_failure: str = ""


class SliceInputs(BaseModel):
    """All inputs of a slice. Numbers are floats, since Pulumi has no integers.

    To read or release a slice, `cluster`, `uuid` and `testbed` suffice.
    """

    # Inputs of a resource also have `backend` and `kind`.
    model_config = ConfigDict(frozen=True, extra="ignore")

    cluster: str
    uuid: str
    testbed: Config
    request: str = ""
    public_key: str = ""
    duration: float = 0
    groups: dict[str, Group] = {}
    head: str = ""

    @classmethod
    def of(cls, inputs: Mapping[str, Any]) -> SliceInputs:
        """Read the inputs in a state, ignoring options of newer versions."""
        return cls.model_validate(inputs, extra="ignore")

    @property
    def name(self) -> str:
        """The slice's name."""
        return documents.slice_name(self.cluster, self.uuid)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of all nodes."""
        return tuple(name for group in self.groups.values() for name in group.nodes)

    def judge(self, found: Description, left_out: Mapping[str, str], user: str) -> Results:
        """Return the results of all nodes.

        Args:
            found: The slice.
            left_out: Nodes that were not requested, with the reasons.
            user: The preferred login of those in the manifest.
        """
        granted, reasons = documents.manifest(found.manifest, self.nodes, user)
        linked = rspec.linked(rspec.without(self.request, left_out)) if self.request else ()
        slivers = {s.client_id: s for s in found.slivers if s.client_id}
        slivers |= {sliver.urn: sliver for sliver in found.slivers}
        results: Results = {}
        for name in self.nodes:
            node = granted.get(name)
            sliver = slivers.get(node.sliver if node else "") or slivers.get(name)
            failure = ""
            if sliver and sliver.operational == "geni_failed":
                failure = sliver.error or "the testbed says geni_failed"
            elif sliver and sliver.operational != "geni_ready":
                failure = f"not ready in time ({sliver.operational or sliver.allocation})"
            reason = left_out.get(name) or failure or reasons.get(name)
            if not reason and node and name in linked and not node.interfaces:
                reason = _NO_NETWORK
            if node and not reason:
                results[name] = node.model_dump(mode="json", exclude={"failed", "linked"})
            else:
                results[name] = {
                    "failed": reason or "the testbed lost it",
                    "sliver": sliver.urn if sliver else "",
                    "linked": name in linked,
                    "booting": sliver is not None and not sliver.is_final,
                }
        return results

    def require_enough(self, results: Results) -> None:
        """Raise TooFew, with the failed nodes, without the head or a group's `min` nodes."""
        failed = {name: result["failed"] for name, result in results.items() if "failed" in result}
        lacks = "the testbed could not give the head" if self.head in failed else ""
        for name, group in self.groups.items():
            left = sum(node not in failed for node in group.nodes)
            if not lacks and left < group.min:
                there = f"{left} of {len(group.nodes)} nodes of group {name!r} are there"
                lacks = f"{there}, at least {group.min} are needed"
        if lacks:
            reasons = "".join(f"\n  {name}: {reason}" for name, reason in failed.items())
            raise TooFew(
                f"{lacks}:{reasons}",
                f"gpubed up {self.cluster} asks for other machines; "
                f"gpubed resources {self.cluster} lists what is free",
            )

    def missing(self, results: Results, added: frozenset[str] = frozenset()) -> dict[str, str]:
        """Return the nodes to request: failed ones to replace, and `added` ones, with reasons."""
        groups = [group for group in self.groups.values() if group.on_failure == "replace"]
        names = added.union(*(group.nodes for group in groups))
        found = {name: results.get(name, {}) for name in self.nodes if name in names}
        return {n: r["failed"] for n, r in found.items() if "failed" in r and not r.get("sliver")}


def planned(plan: ClusterPlan) -> dict[str, Any]:
    """Return the inputs of a slice that depend only on the plan."""
    groups, hardware = {}, Config.of(plan.spec.backend).hardware
    for group in plan.spec.nodes:
        wanted = hardware.get(group.name)
        groups[group.name] = {
            "nodes": [node.name for node in plan.nodes if node.group == group.name],
            "min": group.least,
            "type": (wanted.type if wanted else None) or "",
            "on_failure": group.on_failure,
        }
    return {
        "cluster": plan.cluster,
        "testbed": plan.spec.backend.model_dump(mode="json", exclude_none=True),
        "request": rspec.request(plan),
        "duration": plan.spec.lease.duration,
        "groups": groups,
        "head": plan.nodes[0].name,
    }


def digest(request: str) -> str:
    """Return a hash of a request; the journal keeps it with the slivers."""
    return hashlib.sha256(request.encode()).hexdigest()[:16]


def description(cluster: str, uuid: str) -> str:
    """Return the labels of a cluster's slice, which the authority keeps as its description."""
    return f"gpubed.cluster={uuid} gpubed.name={cluster}"


def owner(text: str) -> tuple[str, str] | None:
    """Return name and UUID of the cluster in a slice's description; None without labels."""
    labels = dict(word.split("=", 1) for word in text.split() if "=" in word)
    name, uuid = labels.get("gpubed.name"), labels.get("gpubed.cluster")
    return (name, uuid) if name and uuid else None
