"""The operations of a cluster on a cloud; finds resources by tags, metadata and names."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from typing import Any

from openstack.connection import Connection

from gpubed.backends.openstack import capacity, cloud, labels
from gpubed.backends.openstack.capacity import Needs
from gpubed.backends.openstack.cloud_init import HostKeyDriver
from gpubed.backends.openstack.config import Config
from gpubed.backends.openstack.existing import reservation
from gpubed.core import reading, record
from gpubed.core.errors import GpubedError, Refused
from gpubed.core.reading import Unreadable
from gpubed.nodes.allocation import Allocation, Node
from gpubed.spec import plan as plans
from gpubed.spec.clusterspec import ClusterSpec
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds.base import Existing, Fault, Finding, Identity, Lease, Offer, Testbed
from gpubed.testbeds.driver import Driver

_FIX = "gpubed doctor CLUSTER --fix"
_WITHIN_S = 300  # for a server's reboot, and a server's or volume's removal
_SKEW_S = 120.0
# Names for Nova's states of a node that is ready, or that `up` starts.
_WORDS = {
    "ACTIVE": "ready",
    "SHUTOFF": "stopped",
    "SHELVED": "stopped",
    "SHELVED_OFFLOADED": "stopped",
    None: "missing",
}
# A server in any other state makes the plugin's read fail (`Invalid power_state for instance`).
_READABLE = {*_WORDS, "BUILD", "ERROR", "MIGRATING", "PAUSED", "DELETED", "SOFT_DELETED"}
_WAY_BACK = {
    "VERIFY_RESIZE": "openstack server resize confirm {id} (or: resize revert {id})",
    "SUSPENDED": "openstack server resume {id}",
    "RESCUE": "openstack server unrescue {id}",
    "UNKNOWN": "openstack server show {id}: its host does not answer; ask the cloud's operators",
}
_ENDS = "wait until that has ended; if it does not: openstack server reboot --hard {id}"


class OpenStackTestbed(Testbed):
    """The project and region of a cluster."""

    @cached_property
    def _connection(self) -> Connection:
        config = Config.of(self.reach.specification.backend)
        return cloud.connect(config.cloud, config.region)

    def _is_own(self, thing: Any) -> bool:
        """Return whether a resource is this cluster's, and not another's of the same name."""
        uuid = record.uuid(self.paths)  # recorded before the first resource is made
        return uuid is not None and labels.uuid_of(thing, self.paths.name) == uuid

    def doctor(self, spec: ClusterSpec) -> list[Finding]:
        """Check tools, credentials, clock, quota, flavors, images and networks."""
        return [*tools(), *self._checked(plans.plan(spec))]

    def _checked(self, plan: ClusterPlan) -> Iterator[Finding]:
        config = Config.of(plan.spec.backend)
        try:
            connection = cloud.connect(config.cloud, config.region)
            with cloud.errors("log in"):
                connection.session.invalidate()  # the age of a token is no difference of clocks
                connection.session.get_token()  # `authorize` hides Keystone's message
                # Keystone need not send a header `Date`, but dates its tokens.
                login: Any = connection.session.auth
                issued = login.get_access(connection.session).issued
                skew = (datetime.now(UTC) - issued).total_seconds()
                project = connection.current_project.name or connection.current_project_id
            where = connection.config.region_name or "the only region"
            yield Finding("openstack.credentials", True, f"project {project} in {where}")
            right, fix = abs(skew) <= _SKEW_S, "set this machine's clock"
            message = f"this machine's clock is {skew:+.0f} s from the cloud's"
            yield Finding("openstack.clock", right, message, None if right else fix)
            yield from self._capacity(plan)
        except GpubedError as error:
            yield Finding("openstack.credentials", False, error.message, error.hint)

    def plugin_environment(self) -> dict[str, str]:
        """Return variables that choose clouds.yaml and entry, and blank other OS_* variables."""
        return cloud.plugin_variables(lambda: self._connection)

    def driver(self, kind: str) -> Driver:
        """Return the driver of a host key, check or look-up."""
        return HostKeyDriver(self.paths) if kind == "hostkey" else super().driver(kind)

    def describe(self, allocation: Allocation) -> dict[str, str]:
        """Return each node's state: ready, stopped, missing, or Nova's own status."""
        with cloud.errors("list the servers"):
            servers = self._connection.compute.servers(details=True)
            states = {server.id: server.status for server in servers}
        found = {node.name: states.get(node.id) for node in allocation.nodes}
        return {name: _WORDS.get(state, str(state).lower()) for name, state in found.items()}

    def restart(self, allocation: Allocation, node: Node) -> None:
        """Have Nova reboot a server (hard reboot), and wait for it."""
        compute = self._connection.compute
        with cloud.errors(f"reboot server {node.id} of {node.name}"):
            server = compute.get_server(node.id)
            if labels.uuid_of(server, allocation.cluster) != allocation.uuid:
                raise Refused(f"server {node.id} does not bear the mark of {allocation.cluster}")
            compute.reboot_server(server, "HARD")
            # Reads the server again: the state read above is ACTIVE.
            compute.wait_for_server(compute.get_server(node.id), wait=_WITHIN_S)

    def identity(self) -> Identity | None:
        """Return the project and region of the credentials."""
        return cloud.identity(self._connection)

    def unrefreshable(self) -> GpubedError | None:
        """Name a server in a state that the plugin cannot read, and how to bring it back."""
        with cloud.errors("list the servers"):
            servers = list(self._connection.compute.servers(details=True))
        for server in servers:
            if server.status not in _READABLE and self._is_own(server):
                way_back = _WAY_BACK.get(server.status, _ENDS).format(id=server.id)
                return Refused(
                    f"server {server.name} is in the state {server.status}, which Pulumi's plugin "
                    "cannot read",
                    f"{way_back}; then: gpubed up {self.paths.name}",
                )
        return None

    def faults(self) -> list[Fault]:
        """Return the servers in the state ERROR that have never run, with Nova's reason."""
        compute = self._connection.compute
        with cloud.errors("list the servers that failed"):
            failed = list(compute.servers(details=True, status="ERROR"))
            # A list of servers has no reasons.
            servers = [compute.get_server(server.id) for server in failed if self._is_own(server)]
        return [
            Fault(thing.node, (server.fault or {}).get("message", "no reason given"), thing)
            for server in servers
            if server.launched_at is None
            for thing in [self._thing("server", server, record.uuid(self.paths) or "")]
        ]

    def existing(self) -> list[Existing]:
        """Return all resources with the cluster's name, in the order of removal."""
        found = []
        for kind in labels.KINDS:
            with cloud.errors(f"list resources of kind {kind}"):
                things = [self._thing(kind, *pair) for pair in self._listed(kind)]
            found += sorted(things, key=lambda thing: (thing.name, thing.id))
        return found

    def _listed(self, kind: str) -> Iterator[tuple[Any, str]]:
        connection, (_, service, noun) = self._connection, labels.KINDS[kind]
        if (kind == "volume" and not connection.has_service("block-storage")) or (
            kind == "qos policy" and connection.network.find_extension("qos") is None
        ):
            return
        noun = "network" if kind == "router interface" else noun
        query: dict[str, Any] = {"project_id": connection.current_project_id}
        if service != "network":
            query = {"details": True} if noun in ("server", "volume") else {}
        things = getattr(getattr(connection, service), f"{noun}s".replace("ys", "ies"))(**query)
        for thing in things:
            uuid = (
                labels.uuid_of_name(thing.name, self.paths.name)
                if kind in ("server group", "key pair")
                else labels.uuid_of(thing, self.paths.name)
            )
            if uuid is None:
                continue
            if kind != "router interface":
                yield thing, uuid
                continue
            # Found by its network, since the router may be an existing one.
            for port in connection.network.ports(network_id=thing.id):
                if "router_interface" in port.device_owner:
                    yield port, uuid

    def _thing(self, kind: str, thing: Any, uuid: str) -> Existing:
        # Both the state and Nova identify key pairs by name.
        name, id_ = str(thing.name or thing.id), str(thing.id)
        if kind == "volume":
            made = datetime.fromisoformat(thing.created_at) if thing.created_at else None
            made = made.replace(tzinfo=made.tzinfo or UTC) if made else None
            kept, size = labels.KEEP in thing.metadata, thing.size * 2**30
            return Existing(kind, name, id_, uuid, data=True, stays=kept, size=size, made=made)
        prefix = labels.name(self.paths.name, uuid, "")
        node = name.removeprefix(prefix) if kind == "server" else ""
        return Existing(kind, name, id_, uuid, node=node)

    def remove(self, thing: Existing) -> None:
        """Remove a resource, if it still exists, and wait until it is gone."""
        _, service, noun = labels.KINDS[thing.kind]
        with cloud.errors(f"remove {thing}"):
            proxy: Any = getattr(self._connection, service)
            delete = getattr(proxy, f"delete_{noun}")
            if thing.kind == "router interface":
                if port := proxy.find_port(thing.id):
                    proxy.remove_interface_from_router(port.device_id, port=thing.id)
            elif thing.kind not in ("server", "volume"):
                delete(thing.id)
            elif there := getattr(proxy, f"find_{noun}")(thing.id):
                delete(there)
                proxy.wait_for_delete(there, wait=_WITHIN_S)

    def lease(self, allocation: Allocation) -> Lease:
        """Return the earliest end of the reservations of nodes."""
        spec = self.reach.specification
        ids = {Config.of(spec.backend).server(group.name).reservation for group in spec.nodes}
        with cloud.errors("ask for the end of the reservation"):
            ends = [reservation(self._connection, id_).end_date for id_ in ids if id_]
        return Lease(min(ends, default=None))

    def renew(self, allocation: Allocation, until: datetime) -> Lease:
        """Refuse: only the user renews reservations."""
        if self.lease(allocation).granted_until is None:
            return super().renew(allocation, until)
        prolong = "openstack reservation lease update --prolong-for 1d LEASE"
        raise Refused("nodes hold a reservation of yours, which gpubed does not renew", prolong)

    def resources(self, spec: ClusterSpec) -> list[Offer]:
        """Return the flavors, each with the number of servers that the quota allows."""
        return capacity.offers(spec)

    def refusals(self, plan: ClusterPlan) -> list[Finding]:
        """Return shortages: quota, flavors, images, networks, addresses; and impossible changes."""
        before = self._applied()
        shrunk = capacity.shrunk(before, Needs.of(plan)) if before else []
        lacking = [finding for finding in self._capacity(plan) if not finding.ok]
        return [*capacity.moved(plan, self.paths), *shrunk, *lacking]

    fits = refusals

    def _capacity(self, plan: ClusterPlan) -> list[Finding]:
        needs, uuid = Needs.of(plan), record.uuid(self.paths)
        connection = cloud.connect(needs.cloud, needs.region)
        with cloud.errors("check its capacity"):
            held = capacity.held(connection, needs, self._applied(), plan.cluster, uuid)
            return capacity.findings(connection, needs, held)

    def _applied(self) -> Needs | None:
        """Return the needs of the specification that was applied last; None if none is kept."""
        with suppress(GpubedError):
            return Needs.of(plans.plan(self.reach.applied()))
        return None


def tools() -> list[Finding]:
    """Check whether Pulumi's CLI and its openstack plugin are on this machine."""
    path = shutil.which("pulumi")
    if path is None:
        return [Finding("openstack.engine", False, "backend openstack needs Pulumi's CLI", _FIX)]
    cli = Finding("openstack.engine", True, f"Pulumi CLI at {path}")
    wanted, command = version("pulumi_openstack"), [path, "plugin", "ls", "--json"]
    output = subprocess.run(command, check=False, capture_output=True, text=True).stdout
    listed = list[dict[str, Any]]()
    with suppress(Unreadable):
        listed = reading.reply(output, "Pulumi's list of plugins").json(list[dict[str, Any]])
    there = [found.get("version") for found in listed if found.get("name") == "openstack"]
    right = wanted in there or shutil.which("pulumi-resource-openstack") is not None
    message = f"Pulumi's openstack plugin {wanted}" + ("" if right else " is not installed")
    return [cli, Finding("openstack.plugin", right, message, None if right else _FIX)]
