"""The OpenStack backend: nodes as servers of a cloud."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from gpubed.backends.openstack import labels
from gpubed.backends.openstack.config import options
from gpubed.core.errors import GpubedError, Refused
from gpubed.spec.clusterspec import Problem
from gpubed.testbeds.base import Backend
from gpubed.testbeds.driver import Driver

# OpenStack's and Pulumi's libraries are slow to import, and most verbs need neither.
if TYPE_CHECKING:
    import pulumi

    from gpubed.backends.openstack.testbed import OpenStackTestbed
    from gpubed.core.paths import ClusterPaths
    from gpubed.spec.clusterspec import ClusterSpec
    from gpubed.spec.plan import ClusterPlan
    from gpubed.testbeds.options import TestbedOptions

_FIX = "gpubed doctor CLUSTER --fix"
# The plugin's error messages, and what they mean in terms of the specification.
_MEANINGS = {
    r"MTU is too big, maximum is (\d+)": (
        "networks.experiment.mtu is more than the cloud's networks carry: at most {} bytes",
        "leave it out, and the cloud chooses, or write mtu: {}",
    ),
    r"rule:(create_policy\w*)\b.*is disallowed by policy": (
        "this cloud lets only its operators make QoS policies ({})",
        "set backend.shaping: none, and networks.experiment.rate to what links carry",
    ),
    r"(Can not find requested image|Image \S+ is unacceptable)": (
        "the image that the nodes were made of is gone from the cloud ({}): no node can be added",
        "name another image under backend.images: that replaces all nodes made of this one, with "
        "what is on their own disks; or ask the cloud's operators for it",
    ),
}


class OpenStackBackend(Backend):
    """Nodes as servers of an OpenStack cloud."""

    name = "openstack"
    engine_required = "cli"
    exchanges_keys = False
    boots_later = True
    # An image of some GB is copied to each host at first, and to a volume where one is booted.
    boots_within_s = 900.0
    restarts = True
    the_way_back = "put OS_CLOUD and other OS_*, or `cloud` and `region` of cluster.yml, back"
    native = frozenset(f"openstack:{type_}" for type_, *_ in labels.KINDS.values())

    def bind(self, reach: TestbedOptions, paths: ClusterPaths) -> OpenStackTestbed:
        """Return the cloud as a cluster sees it."""
        from gpubed.backends.openstack.testbed import OpenStackTestbed

        return OpenStackTestbed(self, reach, paths)

    def check(self, spec: ClusterSpec) -> list[Problem]:
        """Refuse unknown groups, volumes for several nodes, and shaped links."""
        names, network = [group.name for group in spec.nodes], spec.networks.experiment
        known, found = f"groups: {', '.join(names)}", list[Problem]()
        for name in options(spec).groups.keys() - set(names):
            where = ("backend", "groups", name)
            found.append(Problem(where, f"there is no node group {name!r}", known))
        if spec.storage.shared.provider == "volume":
            why = "OpenStack mounts no volume on several nodes"
            found.append(Problem(("storage", "shared", "provider"), why, "auto, nfs"))
        for key in ("latency", "loss"):
            if network and getattr(network, key):
                why = f"OpenStack's networks have no {key} to order"
                found.append(Problem(("networks", "experiment", key), why, "leave it out"))
        return found

    def shapes_links(self, spec: ClusterSpec) -> bool:
        """Return whether the cloud's network holds links to their rate, which QoS does."""
        return getattr(spec.backend, "shaping", None) == "qos"

    def repair(self, say: Callable[[str], None]) -> None:
        """Install the plugin that Pulumi's OpenStack package needs, with Pulumi's own installer."""
        wanted = version("pulumi_openstack")
        command = ["pulumi", "plugin", "install", "resource", "openstack", wanted]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except FileNotFoundError:
            raise GpubedError("the Pulumi CLI is not on PATH", _FIX) from None
        except subprocess.CalledProcessError as error:
            why = str(error.stderr).strip().rpartition("\n")[2] or "no reason given"
            raise GpubedError(f"Pulumi's openstack plugin could not be installed: {why}") from None
        say(f"Pulumi's openstack plugin {wanted} is installed")

    def component(
        self,
        plan: ClusterPlan,
        uuid: pulumi.Output[str],
        public_key: pulumi.Output[str],
        opts: pulumi.ResourceOptions | None,
    ) -> pulumi.Output[dict[str, Any]]:
        """Declare networks, security groups, servers and the floating address."""
        from gpubed.backends.openstack.component import Cluster

        return Cluster(plan, uuid, public_key, opts).allocation

    def driver(self, kind: str) -> Driver:
        """Return the driver of a look at the cloud."""
        from gpubed.backends.openstack import capacity

        if kind == "capacity":
            return capacity.CapacityDriver()
        return capacity.LookupDriver(kind) if kind in ("image", "network") else super().driver(kind)

    def explained(self, error: GpubedError) -> GpubedError | None:
        """Translate a refusal of the cloud into terms of the specification, if one is known."""
        for pattern, (message, hint) in _MEANINGS.items():
            if found := re.search(pattern, error.message):
                return Refused(message.format(found[1]), hint.format(found[1]))
        return None


def create() -> OpenStackBackend:
    """Make the backend; the registry calls this."""
    return OpenStackBackend()
