"""A cluster in a Pulumi program, and the provider of its resources.

States refer to the provider by this module and its name, which never change.
"""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

import pulumi

from gpubed.cluster import drivers
from gpubed.core import secret
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths, Project
from gpubed.core.reading import Unreadable
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds.registry import backend
from gpubed.testbeds.resources import Configuration, Identity, Key, Provider
from gpubed.testbeds.specification import load_plan

__all__ = ["Cluster", "Provider", "declare"]

Provider.own = drivers.driver


class Cluster(pulumi.ComponentResource):
    """A cluster as a component of your own Pulumi program, ready once `pulumi up` ends.

    The project folder, with `inventories/` and `.gpubed/`, is the one that has `Pulumi.yaml`. Needs
    Pulumi's CLI.

    Attributes:
        uuid: The cluster's UUID, which everything that is made carries as a label.
        head_address: IP address or host name of the head, where SSH answers.
        node_addresses: The same of every node, by its name; empty on testbeds that run jobs only.
        allocation: All that was granted: nodes, addresses, host keys. This and the above are known
            once the nodes are there, all below once they are configured and verified.
        state: `ready`, or `allocated` with `configure: false`.
        head: The head's name; None on testbeds that run jobs only.
        ssh_command: How OpenSSH gets to the head; None like `head`.
        jupyterlab_url: JupyterLab's URL without its token; None if the cluster has none.
    """

    uuid: pulumi.Output[str]
    head_address: pulumi.Output[str | None]
    node_addresses: pulumi.Output[dict[str, str]]
    allocation: pulumi.Output[dict[str, Any]]
    state: pulumi.Output[str]
    head: pulumi.Output[str | None]
    ssh_command: pulumi.Output[str | None]
    jupyterlab_url: pulumi.Output[str | None]

    def __init__(
        self, name: str, spec: str | Path = "", opts: pulumi.ResourceOptions | None = None
    ) -> None:
        """Declare a cluster.

        Args:
            name: The component's name in the program.
            spec: `inventories/<cluster>/cluster.yml`; without it, the cluster is called `name`.
            opts: Options of the component; its resources inherit what Pulumi lets them inherit.

        Raises:
            pulumi.RunError: The specification is missing, wrong, or elsewhere.
        """
        cluster = Path(spec).parent.name if spec else name
        paths = Project.find().cluster(cluster)
        if spec and (paths.project.root / spec).resolve() != paths.spec.resolve():
            raise pulumi.RunError(
                f"{spec} is not inventories/<cluster>/cluster.yml of {paths.project.root}: put it "
                "there; that is the folder of Pulumi.yaml, or what GPUBED_ROOT names"
            )
        # URNs contain the types of parents, not their names: so two clusters do not clash.
        super().__init__(f"gpubed:cluster/{cluster}:Cluster", name, None, opts)
        found = declare(cluster, pulumi.ResourceOptions(parent=self))
        self.allocation, self.state = found["allocation"], found["state"]
        none = pulumi.Output.from_input(None)
        self.head, self.ssh_command, self.jupyterlab_url = (
            found.get(key, none) for key in ("head", "ssh_command", "jupyterlab_url")
        )
        self.uuid = self.allocation.apply(lambda granted: granted["uuid"])
        self.node_addresses = self.allocation.apply(
            lambda granted: {node["name"]: node["control_address"] for node in granted["nodes"]}
        )
        self.head_address = self.node_addresses.apply(
            lambda addresses: next(iter(addresses.values()), None)
        )
        self.register_outputs({key: getattr(self, key) for key in Cluster.__annotations__})


def declare(
    cluster_name: str, opts: pulumi.ResourceOptions | None = None
) -> dict[str, pulumi.Output[Any]]:
    """Declare the resources of a cluster; return the outputs of its stack.

    The identity comes first: it makes the UUID that all other resources carry. The configuration
    comes last: it renders the inventory, applies the roles and verifies the result, so that `pulumi
    up` ends in a ready cluster. Resources without another parent get `opts`.

    Raises `pulumi.RunError` for a missing or wrong specification.
    """
    paths = Project.find().cluster(cluster_name)
    try:
        return _declared(load_plan(paths.spec_in_use, paths.name), paths, opts)
    except GpubedError as error:  # a traceback would hide the reason
        raise pulumi.RunError(str(error)) from None


def _declared(
    cluster: ClusterPlan, paths: ClusterPaths, opts: pulumi.ResourceOptions | None
) -> dict[str, pulumi.Output[Any]]:
    owner = {"cluster": paths.name}
    public_key = Key("key", "gpubed", owner, opts).result["public_key"]
    # A preview does not know a future result and would replace all that depends on it, even if
    # the key exists and only its resource is new.
    with suppress(Unreadable):  # the resource reports the error
        if kept := secret.public_key(paths.private_key):
            public_key = pulumi.Output.from_input(kept)
    uuid = Identity("identity", "gpubed", owner, opts).result["uuid"]
    allocation = backend(cluster.backend).component(cluster, uuid, public_key, opts)
    made = _configuration(cluster, paths, allocation, opts)
    # Outputs become known only after the configuration is done.
    known = pulumi.Output.all(allocation, made.result).apply(
        lambda both: outputs(cluster, paths, both[0])
    )
    names = ["state"]
    if cluster.spec.backend.lends_nodes:
        names += ["head", "ssh_command"]
        if cluster.spec.configure and cluster.spec.services.jupyterlab:
            names += ["jupyterlab_url"]
    return {"allocation": allocation, **{name: known[name] for name in names}}


def _configuration(
    cluster: ClusterPlan,
    paths: ClusterPaths,
    allocation: pulumi.Output[dict[str, Any]],
    opts: pulumi.ResourceOptions | None,
) -> Configuration:
    # Testbeds that run jobs have no nodes to configure.
    configured = cluster.spec.configure and cluster.spec.backend.lends_nodes

    def wanted(data: dict[str, Any]) -> dict[str, dict[str, str]]:
        # Not called in a preview of a new cluster, which has no allocation yet.
        from gpubed.configuration import roles
        from gpubed.nodes.allocation import Allocation

        return roles.fingerprints(cluster, Allocation.model_validate(data), paths.inventory)

    inputs = {
        "cluster": cluster.cluster,
        "configure": configured,
        "specification": cluster.spec.digest,
        "allocation": allocation,
        "fingerprints": allocation.apply(wanted) if configured else {},
    }
    return Configuration("configuration", "gpubed", inputs, opts)


def outputs(cluster: ClusterPlan, paths: ClusterPaths, granted: dict[str, Any]) -> dict[str, str]:
    """Return a stack's outputs except the allocation; they contain no token."""
    from gpubed.access import services
    from gpubed.nodes.allocation import Allocation
    from gpubed.nodes.allocation import Cluster as Granted

    allocation = Allocation.model_validate(granted)
    known = {"state": "ready" if cluster.spec.configure else "allocated"}
    if not allocation.nodes:
        return known
    head = allocation.head.name
    known |= {"head": head, "ssh_command": f"ssh -F {shlex.quote(str(paths.ssh_config))} {head}"}
    found = services.urls(Granted(paths, cluster, allocation))
    return known | {f"{service['name']}_url": service["url"] for service in found}
