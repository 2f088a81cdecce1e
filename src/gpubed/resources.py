"""A cluster in a Pulumi program, and the provider of its resources.

States name this module and `Provider`, so neither may be renamed.
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

    Needs Pulumi's CLI. The project folder, with `inventories/` and `.gpubed/`, is that of
    `Pulumi.yaml`.

    The first four outputs are known once the nodes exist, the others once the nodes are configured
    and verified.

    Attributes:
        uuid: The cluster's UUID, a label of all its resources.
        head_address: IP address or host name of the head's SSH server.
        node_addresses: The same for each node, by name; empty on testbeds that only run jobs.
        allocation: The granted nodes with their addresses and host keys.
        state: `ready`, or `allocated` with `configure: false`.
        head: The head's name; None on testbeds that only run jobs.
        ssh_command: The OpenSSH command that logs in to the head; None if `head` is None.
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
            opts: Options of the component, which its resources inherit by Pulumi's rules.

        Raises:
            pulumi.RunError: The specification is missing, wrong, or elsewhere.
        """
        cluster = Path(spec).parent.name if spec else name
        paths = Project.find().cluster(cluster)
        if spec and (paths.project.root / spec).resolve() != paths.spec.resolve():
            raise pulumi.RunError(
                f"{spec} is not inventories/<cluster>/cluster.yml of {paths.project.root}: move it "
                "there; GPUBED_ROOT, or else the folder of Pulumi.yaml, is the project"
            )
        # URNs have the types of parents, not their names, so the type has the cluster's name.
        super().__init__(f"gpubed:cluster/{cluster}:Cluster", name, None, opts)
        declared = declare(cluster, pulumi.ResourceOptions(parent=self))
        self.allocation, self.state = declared["allocation"], declared["state"]
        none = pulumi.Output.from_input(None)
        self.head, self.ssh_command, self.jupyterlab_url = (
            declared.get(key, none) for key in ("head", "ssh_command", "jupyterlab_url")
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

    The first resource is the identity, which makes the UUID of all others. The last one is the
    configuration, which renders the inventory, applies roles and verifies, so that `pulumi up` ends
    in a ready cluster. Resources without another parent get `opts`.

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
    # If the key exists and only its resource is new, use the key: a preview does not know the
    # resource's result, and would replace everything that depends on it.
    with suppress(Unreadable):  # the resource reports the error
        if kept := secret.public_key(paths.private_key):
            public_key = pulumi.Output.from_input(kept)
    uuid = Identity("identity", "gpubed", owner, opts).result["uuid"]
    allocation = backend(cluster.backend).component(cluster, uuid, public_key, opts)
    configuration = _configuration(cluster, paths, allocation, opts)
    # Depends on the configuration, so that outputs are known only once it is done.
    known = pulumi.Output.all(allocation, configuration.result).apply(
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

    def fingerprints(data: dict[str, Any]) -> dict[str, dict[str, str]]:
        # A preview of a new cluster has no allocation, and so needs no such imports.
        from gpubed.configuration import roles
        from gpubed.nodes.allocation import Allocation

        return roles.fingerprints(cluster, Allocation.model_validate(data), paths.inventory)

    inputs = {
        "cluster": cluster.cluster,
        "configure": configured,
        "specification": cluster.spec.digest,
        "allocation": allocation,
        "fingerprints": allocation.apply(fingerprints) if configured else {},
    }
    return Configuration("configuration", "gpubed", inputs, opts)


def outputs(cluster: ClusterPlan, paths: ClusterPaths, granted: dict[str, Any]) -> dict[str, str]:
    """Return a stack's outputs except the allocation; they contain no token."""
    from gpubed.access import services
    from gpubed.nodes.allocation import Allocation
    from gpubed.nodes.allocation import Cluster as Granted

    allocation = Allocation.model_validate(granted)
    result = {"state": "ready" if cluster.spec.configure else "allocated"}
    if not allocation.nodes:
        return result
    head = allocation.head.name
    result |= {"head": head, "ssh_command": f"ssh -F {shlex.quote(str(paths.ssh_config))} {head}"}
    urls = services.urls(Granted(paths, cluster, allocation))
    return result | {f"{service['name']}_url": service["url"] for service in urls}
