"""What an OpenStack cloud cannot do, and what the backend's own options must agree with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from gpubed.backends.openstack.config import Config
from gpubed.backends.openstack.needs import Needs, gib
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths
from gpubed.nodes import allocation as allocations
from gpubed.spec import plan as plans
from gpubed.spec.clusterspec import ClusterSpec, Problem
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds.base import Finding
from gpubed.testbeds.reach import Reach


def problems(spec: ClusterSpec) -> list[Problem]:
    """Return everything that this backend would have to refuse or to pretend."""
    config = spec.backend
    assert isinstance(config, Config)  # noqa: S101  # the registry chose this backend by it
    return [*_groups(spec, config), *_storage(spec), *_link(spec)]


def moved(plan: ClusterPlan, paths: ClusterPaths) -> list[Finding]:
    """Return which planned node would get the address of one that is there under another name.

    Pulumi removes last what is wanted no more, and a cloud gives no address twice.
    """
    there: dict[str, str] = {}
    with suppress(GpubedError):  # nothing is there, or nobody knows
        granted = allocations.load(paths.allocation)
        there = {node.control_address: node.name for node in granted.nodes}
    for node in plan.nodes:
        holder = there.get(str(node.control_address), node.name)
        if holder != node.name:
            message = (
                f"{node.name} would get the address of {holder}, which the cloud keeps until "
                f"{holder} is gone, and that is after {node.name} would be made"
            )
            fix = (
                "keep names and order of the groups that there are; or "
                f"gpubed down {plan.cluster}, then up"
            )
            return [Finding("openstack.address", False, message, fix)]
    return []


def shrunk(before: Needs, after: Needs) -> list[Finding]:
    """Return which data volumes would become smaller, or take the place of others.

    A cloud makes no volume smaller, and the first of fewer is the first of before.
    """
    former = {group.name: group.server.data_volumes for group in before.groups}
    found = list[Finding]()
    for group in after.groups:
        wanted, had = group.server.data_volumes, former.get(group.name, ())
        moved = len(wanted) < len(had) and wanted != had[: len(wanted)]
        smaller = any(gib(new) < gib(old) for new, old in zip(wanted, had, strict=False))
        if moved or smaller:
            sizes = ", ".join(f"{gib(size)} GiB" for size in had)
            message = (
                f"data_volumes of group {group.name} were {sizes}: none can become smaller, "
                "and of several only the last can be left out"
            )
            fix = "keep their sizes and order: larger ones, more at the end, or fewer from there"
            found.append(Finding("openstack.volumes", False, message, fix))
    return found


def applied(reach: Reach) -> Needs | None:
    """Return the needs of the specification that was applied last; None where none is kept."""
    with suppress(GpubedError):
        return Needs.of(plans.plan(reach.applied()))
    return None


def _groups(spec: ClusterSpec, config: Config) -> Iterator[Problem]:
    names = [group.name for group in spec.nodes]
    for name in config.groups:
        if name not in names:
            yield Problem(
                ("backend", "groups", name),
                f"there is no node group {name!r}",
                f"groups: {', '.join(names)}",
            )


def _storage(spec: ClusterSpec) -> Iterator[Problem]:
    if spec.storage.shared.provider == "volume":
        yield Problem(
            ("storage", "shared", "provider"),
            "OpenStack mounts no volume on several nodes",
            "auto or nfs",
        )


def _link(spec: ClusterSpec) -> Iterator[Problem]:
    network = spec.networks.experiment
    for key in ("latency", "loss"):
        if network and getattr(network, key):
            yield Problem(
                ("networks", "experiment", key),
                f"OpenStack's networks have no {key} to order",
                "leave it out",
            )
