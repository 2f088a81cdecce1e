"""The OpenStack backend: nodes as servers of a cloud."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import version
from ipaddress import AddressValueError, IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpubed.backends.openstack import labels
from gpubed.backends.openstack.config import Attachment, Config
from gpubed.core import reading
from gpubed.core.errors import GpubedError, Refused
from gpubed.nodes import allocation
from gpubed.spec.clusterspec import Problem
from gpubed.spec.plan import Surroundings
from gpubed.testbeds.base import Backend
from gpubed.testbeds.driver import Driver

# OpenStack's and Pulumi's libraries are slow to import, and most verbs need neither.
if TYPE_CHECKING:
    import pulumi

    from gpubed.core.paths import ClusterPaths
    from gpubed.spec.clusterspec import ClusterSpec
    from gpubed.spec.plan import ClusterPlan, NodePlan

_FIX = "gpubed doctor CLUSTER --fix"
_USER_DATA_BYTES = 2**15  # Nova takes 64 KiB in base64, gpubed's own part included
# The plugin's error messages, and what they mean in terms of the specification.
_MEANINGS = {
    r"MTU is too big, maximum is (\d+)": (
        "networks.experiment.mtu is more than the cloud's networks carry: at most {} bytes",
        "leave it out, and the cloud chooses, or write mtu: {}",
    ),
    r"External network (\S+) is not reachable from subnet": (
        "no router leads from the existing network to the external network {}",
        "take a backend.external_network that it leads to, or backend.floating_ip: false",
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
    # Clouds copy an image of some GB to each host, and to boot volumes.
    boots_within_s = 900.0
    restarts = True
    return_hint = "put OS_CLOUD and other OS_*, or `cloud` and `region` of cluster.yml, back"
    native = frozenset(f"openstack:{type_}" for type_, *_ in labels.KINDS.values())

    def check(self, spec: ClusterSpec) -> list[Problem]:
        """Refuse unknown groups, contradictory networks, shared volumes, latency and loss."""
        names, network = [group.name for group in spec.nodes], spec.networks.experiment
        known, found = f"groups: {', '.join(names)}", list[Problem]()
        for name in Config.of(spec.backend).groups.keys() - set(names):
            where = ("backend", "groups", name)
            found.append(Problem(where, f"there is no node group {name!r}", known))
        found += [Problem(*one) for one in (*_attached(spec), *_of_servers(spec))]
        if spec.storage.shared.provider == "volume":
            why = "OpenStack mounts no volume on several nodes"
            found.append(Problem(("storage", "shared", "provider"), why, "auto, nfs"))
        for key in ("latency", "loss"):
            if network and getattr(network, key):
                why = f"networks of OpenStack cannot set {key}"
                found.append(Problem(("networks", "experiment", key), why, "leave it out"))
        return found

    def surroundings(self, spec: ClusterSpec, paths: ClusterPaths) -> Surroundings | None:
        """Return the subnets of existing networks, as granted."""
        kept = dict[str, IPv4Network]()
        with suppress(GpubedError, AddressValueError):  # there are no nodes, or they have IPv6
            granted, config = allocation.load(paths.allocation), Config.of(spec.backend)
            there = {"experiment": granted.experiment, "control": granted.control}
            for purpose, network in there.items():
                if network and granted.backend == self.name and getattr(config, purpose).network:
                    kept[purpose] = IPv4Network(network.subnet)
        return Surroundings(kept)

    def foretold(self, plan: ClusterPlan, node: NodePlan) -> dict[str, Any]:
        """Return the experiment address, unless the cloud chooses it on an existing network."""
        return (
            {} if Config.of(plan.spec.backend).experiment.network else super().foretold(plan, node)
        )

    def shapes_links(self, spec: ClusterSpec) -> bool:
        """Return whether QoS policies limit links."""
        return getattr(spec.backend, "shaping", None) == "qos"

    def repair(self, say: Callable[[str], None]) -> None:
        """Install Pulumi's OpenStack plugin, in the version of its Python package.

        A plugin on PATH stays in use: Pulumi prefers it to an installed one.
        """
        if path := shutil.which("pulumi-resource-openstack"):
            say(f"Pulumi's openstack plugin is on PATH: {path}")
            return
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
        """Return the driver of a check or look-up."""
        from gpubed.backends.openstack import capacity

        if kind == "capacity":
            return capacity.CapacityDriver()
        return capacity.LookupDriver(kind) if kind in ("image", "network") else super().driver(kind)

    def explained(self, error: GpubedError) -> GpubedError | None:
        """Translate a known refusal of the cloud into terms of the specification."""
        for pattern, (message, hint) in _MEANINGS.items():
            if found := re.search(pattern, error.message):
                return Refused(message.format(found[1]), hint.format(found[1]))
        return None


def _attached(spec: ClusterSpec) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Yield contradictions in the networks of nodes: key, reason, and fix."""
    config, networks = Config.of(spec.backend), spec.networks
    needed = config.floating_ip is True or not (config.control.network or config.router)
    if needed and not config.external_network:
        why = "it is needed for a floating address and for a new router"
        ways = "a name; or floating_ip: false or an address, with control.network or router"
        yield ("backend", "external_network"), why, ways
    if config.experiment != Attachment() and not networks.experiment:
        why, way = "there is no experiment network", "networks.experiment, or leave it out"
        yield ("backend", "experiment"), why, way
    for purpose in ("control", "experiment"):
        wanted, subnet = getattr(config, purpose), getattr(networks, purpose)
        for key in {"subnet", "mtu"} & (subnet.model_fields_set if subnet else set()):
            if wanted.network:
                why = f"network {wanted.network} has its own"
                yield ("networks", purpose, key), why, "leave it out"
        if wanted.subnet and not wanted.network:
            why = "it belongs to an existing network, and none is named"
            yield ("backend", purpose, "subnet"), why, f"backend.{purpose}.network"
    for name in ("router", "dns"):
        if config.control.network and getattr(config, name):
            yield ("backend", name), f"network {config.control.network} has its own", "leave it out"
    if config.experiment.vnic_type == "baremetal" and config.shaping == "qos":
        yield ("backend", "shaping"), "no cloud limits ports of bare metal", "none"


def _of_servers(spec: ClusterSpec) -> Iterator[tuple[tuple[str, ...], str, str]]:
    config = Config.of(spec.backend)
    for group in spec.nodes:
        own = config.server(group.name)
        where = ("backend", "groups", group.name) if group.name in config.groups else ("backend",)
        if any(key.startswith("gpubed.") for key in own.metadata):
            yield (*where, "metadata"), "keys that begin with gpubed. are reserved", "other keys"
        if own.user_data:
            path, why = Path(own.user_data).expanduser(), ""
            try:
                if not reading.file(path, limit=_USER_DATA_BYTES).text().startswith("#"):
                    why = f"{path} has no format of cloud-init"
            except GpubedError as error:
                why = error.message
            if why:
                way = "a file of 32 KiB at most, that begins with #cloud-config, #! or the like"
                yield (*where, "user_data"), why, way
