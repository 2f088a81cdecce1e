"""What a cloud offers, and whether a plan fits into it now."""

from __future__ import annotations

from typing import Any

from gpubed.backends.openstack import availability, cloud, flavors, quota
from gpubed.backends.openstack.config import Config
from gpubed.backends.openstack.needs import Needs
from gpubed.spec.clusterspec import ClusterSpec
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds.base import Finding, Offer


def offers(spec: ClusterSpec) -> list[Offer]:
    """Return the flavors; the quota bounds how many servers of each there may be.

    Nova does not tell its users what hosts are free, so a free server is one that the
    quota has room for.
    """
    config = spec.backend
    assert isinstance(config, Config)  # noqa: S101  # the registry chose this backend by it
    connection = cloud.connect(config.cloud, config.region)
    with cloud.errors("list the flavors"):
        limits = {limit.name: limit for limit in quota.read(connection, volumes=False)}
        found = list(connection.compute.flavors(get_extra_specs=True))
        return [_offer(flavor, limits) for flavor in sorted(found, key=lambda flavor: flavor.name)]


def obstacles(plan: ClusterPlan, uuid: str | None, before: Needs | None) -> list[Finding]:
    """Return why the cloud cannot give what a plan needs beyond what is there.

    Args:
        plan: What is wanted.
        uuid: The cluster's UUID; None where it has none yet.
        before: The needs of the specification that was applied last, where one is kept.
    """
    needs = Needs.of(plan)
    connection = cloud.connect(needs.cloud, needs.region)
    with cloud.errors("look at what the cloud has"):
        held = availability.held(connection, needs, plan.cluster, uuid, before)
        found = availability.findings(connection, needs, held)
        if before:
            found += availability.retired(connection, needs, before, plan.cluster, uuid)
    return [finding for finding in found if not finding.ok]


def _offer(flavor: Any, limits: dict[str, quota.Quota]) -> Offer:
    costs = {"instances": 1, "cores": flavor.vcpus, "ram": flavor.ram}
    bounds = [(limits[name], cost) for name, cost in costs.items() if cost and name in limits]
    gpus = flavors.gpus(flavor.extra_specs or {})
    return Offer(
        name=flavor.name,
        total=min((limit.limit // cost for limit, cost in bounds), default=None),
        free=min((limit.left // cost for limit, cost in bounds), default=None),
        gpus=gpus.count if gpus else None,
        gpu_model=gpus.model if gpus else "",
        note=f"{flavor.vcpus} CPUs, {flavor.ram} MiB, {flavor.disk} GiB disk",
    )
