"""The slices backend: machines of SLICES' basic infrastructure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpubed.backends.slices.config import Config
from gpubed.spec.clusterspec import Problem
from gpubed.testbeds.base import Backend

# Pulumi's and paramiko's libraries are slow to import, and most verbs need neither.
if TYPE_CHECKING:
    import pulumi

    from gpubed.spec.clusterspec import ClusterSpec
    from gpubed.spec.plan import ClusterPlan


class SlicesBackend(Backend):
    """Machines that SLICES lends for a time."""

    name = "slices"
    boots_later = True
    boots_within_s = 600.0
    exchanges_keys = False
    lists_nodes = True
    return_hint = "put `project`, `experiment` and `infra` of cluster.yml's `backend:` back"

    def check(self, spec: ClusterSpec) -> list[Problem]:
        """Refuse unknown groups and images, links, and a shared volume."""
        config, found = Config.of(spec.backend), list[Problem]()
        groups, images = [group.name for group in spec.nodes], ", ".join(config.images)
        for name in config.flavors.keys() - set(groups):
            why, where = f"there is no node group {name!r}", ("backend", "flavors", name)
            found.append(Problem(where, why, ", ".join(groups)))
        for place, group in enumerate(spec.nodes):
            if group.image not in config.images:
                why = f"backend.images names no disk image of SLICES for {group.image!r}"
                found.append(Problem(("nodes", place, "image"), why, images))
        if spec.networks.experiment:
            why = "SLICES makes no links: nodes use its own network"
            found.append(Problem(("networks", "experiment"), why, "leave it out"))
        elif spec.count > 1 and spec.networks.control.subnet is None:
            why = "control.subnet is missing: jobs communicate over it"
            found.append(Problem(("networks",), why, "the network of the machines' addresses"))
        if spec.storage.shared.provider == "volume":
            why = "SLICES mounts no volume on several machines"
            found.append(Problem(("storage", "shared", "provider"), why, "auto, nfs"))
        return found

    def component(
        self,
        plan: ClusterPlan,
        uuid: pulumi.Output[str],
        public_key: pulumi.Output[str],
        opts: pulumi.ResourceOptions | None,
    ) -> pulumi.Output[dict[str, Any]]:
        """Declare a machine for each node."""
        from gpubed.backends.component import Component
        from gpubed.testbeds.resources import Node

        config, cluster = Config.of(plan.spec.backend), Component(self.name, plan.cluster, opts)
        common: dict[str, Any] = {
            "cluster": plan.cluster,
            "uuid": uuid,
            "testbed": config.model_dump(mode="json", exclude={"flavors", "images"}),
            "where": [config.project, config.experiment, config.infra],
            "public_key": public_key,
            "lease_s": plan.spec.lease.duration,
        }
        found = []
        for node in plan.nodes:
            flavor = config.flavors.get(node.group, config.flavor)
            own = common | {"name": node.name, "flavor": flavor, "on_failure": node.on_failure}
            own["image"] = config.images[node.image]
            found.append(Node(node.name, self.name, own, cluster.children).result)
        return cluster.grant(plan, uuid, found)
