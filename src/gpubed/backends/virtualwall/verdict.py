"""What became of each node of a slice, and whether that is enough."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

from gpubed.backends.virtualwall import manifest
from gpubed.backends.virtualwall.aggregate import Description, Sliver
from gpubed.backends.virtualwall.manifest import Granted
from gpubed.backends.virtualwall.rspec import LAN
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
    found: Description,
    nodes: Iterable[str],
    left_out: Mapping[str, str],
    user: str,
    linked: Container[str] = (),
) -> Results:
    """Return what became of each node, as `granted` of its resource.

    Args:
        found: What the aggregate has.
        nodes: What was asked for.
        left_out: Nodes that the testbed did not have, and its reasons.
        user: Our name, whose login is preferred.
        linked: The nodes that a network was asked for.

    Raises:
        Malformed: The manifest cannot be read.
    """
    names = tuple(nodes)
    granted, reasons = manifest.read(found.manifest, names, user)
    slivers = {s.client_id: s for s in found.slivers if s.client_id}
    slivers |= {sliver.urn: sliver for sliver in found.slivers}
    ends = manifest.linked(found.manifest)
    results: Results = {}
    for name in names:
        node = granted.get(name)
        sliver = slivers.get(node.sliver if node else "") or slivers.get(name)
        reason = left_out.get(name) or _failure(sliver) or reasons.get(name)
        is_linked = bool(node and node.interfaces) and f"{name}:{LAN}" in ends
        if not reason and name in linked and not is_linked:
            reason = _NO_NETWORK
        if node is None or reason:
            urn, why = sliver.urn if sliver else "", reason or "the testbed lost it"
            booting = sliver is not None and not sliver.is_final
            given = {"sliver": urn, "linked": name in linked, "booting": booting}
            results[name] = {"failed": why, **given}
        else:
            results[name] = _usable(node)
    return results


def require_enough(wanted: SliceInputs, results: Results) -> None:
    """Check that the head and the fewest nodes that will do are there.

    Raises:
        TooFew: They are not; names each node that failed, with the testbed's reason.
    """
    failed = {name: result["failed"] for name, result in results.items() if "failed" in result}
    reasons = "".join(f"\n  {name}: {reason}" for name, reason in failed.items())
    if wanted.head in failed:
        raise TooFew(f"the testbed could not give the head:{reasons}", _again(wanted))
    for name, group in wanted.groups.items():
        left = sum(node not in failed for node in group.nodes)
        if left < group.min:
            raise TooFew(
                f"{left} of {len(group.nodes)} nodes of group {name!r} are there, "
                f"at least {group.min} are needed:{reasons}",
                _again(wanted),
            )


def missing(results: Results, wanted: SliceInputs) -> dict[str, str]:
    """Return the nodes that the testbed did not have and that are to be asked for again."""
    again = {
        name
        for group in wanted.groups.values()
        if group.on_failure == "replace"
        for name in group.nodes
    }
    lacking = {n: r["failed"] for n, r in results.items() if "failed" in r and not r.get("sliver")}
    return {name: reason for name, reason in lacking.items() if name in again}


def is_unfinished(results: Results, wanted: SliceInputs) -> bool:
    """Say whether more can come of the slice: nodes to ask for again, or to see through."""
    return bool(missing(results, wanted)) or any(r.get("booting") for r in results.values())


def _again(wanted: SliceInputs) -> str:
    return (
        f"gpubed up {wanted.cluster} asks for other machines; "
        f"gpubed resources {wanted.cluster} lists what is free"
    )


def _usable(node: Granted) -> dict[str, Any]:
    return {
        "sliver": node.sliver,
        "host": node.host,
        "port": node.port,
        "user": node.user,
        "ipv4": node.ipv4,
        "machine": node.machine,
        "interfaces": [vars(interface) for interface in node.interfaces],
    }


def _failure(sliver: Sliver | None) -> str | None:
    if sliver is None or sliver.operational == "geni_ready":
        return None
    if sliver.operational == "geni_failed":
        return sliver.error or "the testbed says geni_failed"
    return f"not ready in time ({sliver.operational or sliver.allocation})"
