"""The virtualwall backend: nodes of testbeds that speak GENI AM API v3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpubed.backends.virtualwall.config import DATA_RECORD, Config, unmapped
from gpubed.core import addresses
from gpubed.core.errors import UsageError
from gpubed.spec.clusterspec import Problem, systems
from gpubed.testbeds.base import Backend

# TLS, XML and SSH libraries are slow to import, and most verbs need none of them.
if TYPE_CHECKING:
    import pulumi

    from gpubed.spec.clusterspec import ClusterSpec
    from gpubed.spec.plan import ClusterPlan, NodePlan


class VirtualWallBackend(Backend):
    """Nodes that an aggregate manager grants."""

    name = "virtualwall"
    exchanges_keys = False
    # Firmware of physical machines takes minutes.
    boots_within_s = 600.0
    restarts = True
    asks_before_growth = True
    return_hint = "put `aggregate`, `authority` and `project` of cluster.yml's `backend:` back"
    data_records = frozenset({DATA_RECORD})

    def canonical_id(self, id_: str) -> str:
        """Return an id with aggregate and authority in normal form."""
        aggregate, _, rest = id_.partition(" ")
        authority, _, project = rest.partition(" ")
        return f"{addresses.urn(aggregate)} {addresses.host(authority)} {project}" if rest else id_

    def check(self, spec: ClusterSpec) -> list[Problem]:
        """Refuse unknown groups, too few machines, and a shared volume without `shared_folder`."""
        config, found = Config.of(spec.backend), list[Problem]()
        groups = {group.name: group for group in spec.nodes}
        for name, wanted in config.hardware.items():
            path, group = ("backend", "hardware", name), groups.get(name)
            if group is None:
                known = f"there are: {', '.join(groups)}"
                found.append(Problem(path, f"there is no node group {name!r}", known))
            elif wanted.machines and len(wanted.machines) != group.count:
                said = f"names {len(wanted.machines)} machines for {group.count} nodes"
                found.append(Problem((*path, "machines"), said, "one per node"))
            if group and group.gpus.per_node and wanted.sliver == "emulab-xen":
                said = "a virtual machine has no GPU"
                found.append(Problem((*path, "sliver"), said, "allowed: raw-pc"))
        if spec.storage.shared.provider == "volume" and config.shared_folder is None:
            said = "the testbed mounts no folder of that name by itself"
            fix = "nfs, or name a folder in backend.shared_folder"
            found.append(Problem(("storage", "shared", "provider"), said, fix))
        return found

    def shapes_links(self, spec: ClusterSpec) -> bool:
        """Return true: links are requested with their capacity, and the testbed enforces it."""
        return True

    def warnings(self, spec: ClusterSpec) -> list[str]:
        """Warn of images that `images` does not map, and of control networks without IPv4."""
        found = [
            f"backend.images names no disk image for {name!r}: the testbed's default is loaded, "
            f"whichever that is; roles take {', '.join(systems())}"
            for name in unmapped(spec)
        ]
        # Some testbeds give nodes IPv4 control addresses; those have `nat: false`.
        config, has_links = Config.of(spec.backend), spec.networks.experiment and spec.count > 1
        if not has_links and not config.bastion and config.nat and spec.configure:
            found.append(
                "without links, traffic takes the control network, and roles need IPv4 there: "
                "nodes of the Virtual Wall have it behind backend.bastion only"
            )
        return found

    def foretold(self, plan: ClusterPlan, node: NodePlan) -> dict[str, Any]:
        """Return the planned address; a single node is in no link and gets none."""
        return super().foretold(plan, node) if len(plan.nodes) > 1 else {"experiment_address": None}

    def component(
        self,
        plan: ClusterPlan,
        uuid: pulumi.Output[str],
        public_key: pulumi.Output[str],
        opts: pulumi.ResourceOptions | None,
    ) -> pulumi.Output[dict[str, Any]]:
        """Declare a slice with all nodes and links, and the preparation of each node."""
        from gpubed.backends.component import Component
        from gpubed.backends.virtualwall import journal, slice_inputs
        from gpubed.testbeds.resources import Node, Slice

        cluster, spec = Component(self.name, plan.cluster, opts), plan.spec
        inputs = slice_inputs.planned(plan) | {"uuid": uuid, "public_key": public_key}
        whole = Slice("slice", self.name, inputs, cluster.children)
        folder = uuid.apply(lambda known: journal.part(spec, known))
        shared = {"folder": folder, "path": spec.storage.shared.path}

        def result(node: NodePlan) -> pulumi.Output[dict[str, Any]]:
            of_node = {
                "cluster": plan.cluster,
                "uuid": uuid,
                "name": node.name,
                "testbed": inputs["testbed"],
                "slice": whole.id,
                "granted": whole.result["nodes"][node.name],
                "mtu": plan.experiment.mtu if plan.experiment else None,
                "shared": shared if journal.part(spec, "") else None,
                "on_failure": node.on_failure,
            }
            return Node(node.name, self.name, of_node, cluster.children).result

        return cluster.grant(plan, uuid, [result(node) for node in plan.nodes])

    def export(self, plan: ClusterPlan, kind: str) -> str:
        """Return the request, or a jFed experiment specification."""
        from gpubed.backends.virtualwall import rspec

        if kind == "rspec":
            return rspec.without(rspec.request(plan), ())
        if kind == "espec":
            return rspec.specification(plan)
        raise UsageError(f"the testbed has no {kind}", "espec or rspec")
