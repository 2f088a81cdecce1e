"""The local backend: nodes are containers or virtual machines on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpubed.testbeds.base import Backend

# Docker's and Pulumi's libraries are slow to import, and most verbs need neither.
if TYPE_CHECKING:
    import pulumi

    from gpubed.core.paths import ClusterPaths
    from gpubed.spec.clusterspec import ClusterSpec, Problem
    from gpubed.spec.plan import ClusterPlan, Surroundings
    from gpubed.testbeds.base import Finding
    from gpubed.testbeds.driver import Driver


class LocalBackend(Backend):
    """Nodes on this machine."""

    name = "local"
    shapes_on_nodes = True
    vacates = True
    lists_nodes = True
    nodes_are_here = True
    when_silent = "its SSH server is started again, or all of it"
    return_hint = "set DOCKER_HOST as it was then, or unset it"
    replacement_hint = "a daemon that was installed anew"

    def check(self, spec: ClusterSpec) -> list[Problem]:
        """Return the parts of a specification that nodes on this machine cannot satisfy."""
        from gpubed.backends.local import spec_checks

        return spec_checks.problems(spec)

    def shapes_links(self, spec: ClusterSpec) -> bool:
        """Return True: the kernel's traffic control limits links."""
        return True

    def doctor(self) -> list[Finding]:
        """Check Docker, disk and memory."""
        from gpubed.backends.local import doctor

        return doctor.findings()

    def surroundings(self, spec: ClusterSpec, paths: ClusterPaths) -> Surroundings:
        """Return the cluster's subnets, and those that are in use on this machine."""
        from gpubed.backends.local import network

        return network.surroundings(spec, paths)

    def warnings(self, spec: ClusterSpec) -> list[str]:
        """Return warnings about missing isolation of containers."""
        from gpubed.backends.local import spec_checks

        return spec_checks.warnings(spec)

    def component(
        self,
        plan: ClusterPlan,
        uuid: pulumi.Output[str],
        public_key: pulumi.Output[str],
        opts: pulumi.ResourceOptions | None,
    ) -> pulumi.Output[dict[str, Any]]:
        """Declare images, networks, volume and nodes."""
        from gpubed.backends.local.component import Cluster

        return Cluster(plan, uuid, public_key, opts).allocation

    def driver(self, kind: str) -> Driver:
        """Return the driver of an image, network, volume or node."""
        from gpubed.backends.local.image import ImageDriver
        from gpubed.backends.local.network import NetworkDriver, VolumeDriver
        from gpubed.backends.local.node import NodeDriver

        drivers: dict[str, type[Driver]] = {
            "image": ImageDriver,
            "network": NetworkDriver,
            "volume": VolumeDriver,
            "node": NodeDriver,
        }
        return drivers[kind]() if kind in drivers else super().driver(kind)

    def environment(self) -> dict[str, str]:
        """Return this machine's CA, proxy and index variables."""
        from gpubed.backends.local import environment

        return environment.environment()
