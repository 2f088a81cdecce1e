"""The local backend's resources as Pulumi sees them."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import pulumi

from gpubed.backends.component import Component
from gpubed.backends.local import container, environment
from gpubed.backends.local.config import Config
from gpubed.backends.local.image import PythonImage, Recipe, node_image
from gpubed.core import reading
from gpubed.spec.plan import ClusterPlan, NetworkPlan, NodePlan
from gpubed.testbeds.resources import Image, Network, Node, Volume

_BACKEND = "local"


class Cluster(Component):
    """Images, networks, the shared volume (if it is one) and the nodes of one cluster."""

    def __init__(
        self,
        plan: ClusterPlan,
        uuid: pulumi.Output[str],
        public_key: pulumi.Output[str],
        opts: pulumi.ResourceOptions | None,
    ) -> None:
        super().__init__(_BACKEND, plan.cluster, opts)
        self._plan = plan
        self._runtime = Config.of(plan.spec.backend).runtime
        self._owner = {"cluster": plan.cluster, "uuid": uuid}
        kinds = sorted({(node.image, node.simulate is not None) for node in plan.nodes})
        # Shared, since each object reads the recipe's files for its digest.
        software = plan.spec.recipe if plan.spec.configure else None
        self._recipes = {
            (name, sim): node_image(Recipe(name, self._runtime, sim), software)
            for name, sim in kinds
        }
        self._images = {kind: self._image(recipe) for kind, recipe in self._recipes.items()}
        self._gpus = gpu_ids(plan)
        self._control = self._network("control", plan.control)
        self._experiment = self._network("experiment", plan.experiment) if plan.experiment else None
        self._shared: Volume | None = None
        # With NFS, a node serves the folder; a volume would be mounted over it at each boot.
        if plan.spec.storage.shared.provider != "nfs":
            inputs = {**self._owner, "purpose": "shared"}
            self._shared = Volume("shared", _BACKEND, inputs, self.retained)
        nodes = [self._node(node, public_key) for node in plan.nodes]
        self.grant(plan, uuid, [node.result for node in nodes], one_host=True)

    def _image(self, recipe: Recipe | PythonImage) -> Image:
        name, suffix = recipe.name, ""
        inputs: dict[str, Any] = {"image": name, "runtime": self._runtime, "digest": recipe.digest}
        if isinstance(recipe, PythonImage):
            inputs["software"] = recipe.software
            recipe = recipe.below
        if recipe.simulate:
            suffix, inputs["simulate"] = "-simulated", True
        return Image(f"{name}{suffix}", _BACKEND, inputs, self.children)

    def _network(self, purpose: str, network: NetworkPlan) -> Network:
        inputs = {**self._owner, "purpose": purpose, "subnet": str(network.subnet)}
        return Network(purpose, _BACKEND, inputs, self.children)

    def _node(self, node: NodePlan, public_key: pulumi.Output[str]) -> Node:
        kind = node.image, node.simulate is not None
        inputs = {
            **self._owner,
            "name": node.name,
            "runtime": self._runtime,
            # The tag, known before the build, shows in a plan that a newer image replaces no node.
            "image": self._recipes[kind].tag,
            "public_key": public_key,
            "control": _attachment(self._control, node.control_address),
            "cpus": node.machine.cpus,
            "memory": node.machine.memory,
            "gpus": self._gpus[node.name],
            "on_failure": node.on_failure,
            **self._link(node),
        }
        if self._runtime == "container" and container.wanted(self._plan.spec, node):
            inputs["confined"] = True
        if bundle := environment.ca_bundle():
            inputs["certificates"] = hashlib.sha256(reading.file(bundle).data).hexdigest()[:16]
        if node.simulate:
            gpus = node.simulate.gpus or node.gpus
            inputs["simulate"] = {"model": node.simulate.model, "gpus": gpus}
        if self._shared:
            path = self._plan.spec.storage.shared.path
            inputs["shared"] = {"volume": self._shared.result["name"], "path": path}
        after = pulumi.ResourceOptions(depends_on=[self._images[kind]])
        options = pulumi.ResourceOptions.merge(self.children, after)
        return Node(node.name, _BACKEND, inputs, options)

    def _link(self, node: NodePlan) -> dict[str, Any]:
        if self._plan.experiment is None or self._experiment is None:
            return {}
        link, wanted = self._plan.experiment, self._plan.spec.networks.experiment
        shape = link.model_dump(mode="json")
        if wanted:
            shape |= {"latency": wanted.latency, "loss": wanted.loss}
        return {"experiment": _attachment(self._experiment, node.experiment_address), "link": shape}


def _attachment(network: Network, address: object) -> dict[str, Any]:
    return {"network": network.result["name"], "address": str(address)}


def gpu_ids(plan: ClusterPlan) -> dict[str, list[str]]:
    """Return the ids of the GPUs of each node, by name; nodes share none."""
    free = itertools.count()
    return {
        node.name: [str(next(free)) for _ in range(0 if node.simulate else node.gpus)]
        for node in plan.nodes
    }
