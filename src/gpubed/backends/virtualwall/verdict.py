"""What became of each node of a slice, and whether the nodes suffice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from gpubed.backends.virtualwall import manifest, rspec
from gpubed.backends.virtualwall.aggregate import Description, Sliver
from gpubed.backends.virtualwall.slice_inputs import SliceInputs
from gpubed.core.errors import Refused

Results = dict[str, dict[str, Any]]
"""By node: where it answers, or why it failed, its sliver, whether a network was asked for
(`linked`), and whether the testbed is not done with it (`booting`)."""

_NO_NETWORK = (
    "the testbed did not grant it the experiment network that was asked for "
    "(networks: {experiment: null}, with a backend.bastion, does without one)"
)


class TooFew(Refused):
    """The head, or more nodes than may fail, cannot be had."""


def judge(
    found: Description, wanted: SliceInputs, left_out: Mapping[str, str], user: str
) -> Results:
    """Return what became of each node, as `granted` of its resource.

    Args:
        left_out: The testbed's reasons for nodes that it did not have, by name.
        user: The preferred login among those of the manifest.
    """
    granted, reasons = manifest.read(found.manifest, wanted.nodes, user)
    linked = rspec.linked(rspec.without(wanted.request, left_out)) if wanted.request else ()
    slivers = {s.client_id: s for s in found.slivers if s.client_id}
    slivers |= {sliver.urn: sliver for sliver in found.slivers}
    results: Results = {}
    for name in wanted.nodes:
        node = granted.get(name)
        sliver = slivers.get(node.sliver if node else "") or slivers.get(name)
        reason = left_out.get(name) or _failure(sliver) or reasons.get(name)
        if not reason and node and name in linked and not node.interfaces:
            reason = _NO_NETWORK
        if node and not reason:
            results[name] = asdict(node)
        else:
            results[name] = {
                "failed": reason or "the testbed lost it",
                "sliver": sliver.urn if sliver else "",
                "linked": name in linked,
                "booting": sliver is not None and not sliver.is_final,
            }
    return results


def require_enough(wanted: SliceInputs, results: Results) -> None:
    """Check that the head and each group's `min` nodes are there; TooFew names each failed node."""
    failed = {name: result["failed"] for name, result in results.items() if "failed" in result}
    lacks = "the testbed could not give the head" if wanted.head in failed else ""
    for name, group in wanted.groups.items():
        left = sum(node not in failed for node in group.nodes)
        if not lacks and left < group.min:
            there = f"{left} of {len(group.nodes)} nodes of group {name!r} are there"
            lacks = f"{there}, at least {group.min} are needed"
    if lacks:
        reasons = "".join(f"\n  {name}: {reason}" for name, reason in failed.items())
        raise TooFew(
            f"{lacks}:{reasons}",
            f"gpubed up {wanted.cluster} asks for other machines; "
            f"gpubed resources {wanted.cluster} lists what is free",
        )


def missing(results: Results, wanted: SliceInputs) -> dict[str, str]:
    """Return the nodes that the testbed did not have and that are to be requested again."""
    again = {
        name
        for group in wanted.groups.values()
        if group.on_failure == "replace"
        for name in group.nodes
    }
    lacking = {n: r["failed"] for n, r in results.items() if "failed" in r and not r.get("sliver")}
    return {name: reason for name, reason in lacking.items() if name in again}


def _failure(sliver: Sliver | None) -> str | None:
    if sliver is None or sliver.operational == "geni_ready":
        return None
    if sliver.operational == "geni_failed":
        return sliver.error or "the testbed says geni_failed"
    return f"not ready in time ({sliver.operational or sliver.allocation})"
