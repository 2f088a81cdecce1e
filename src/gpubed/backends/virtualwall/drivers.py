"""The drivers of a slice, which the testbed grants as one, and of its nodes.

A node's driver logs in to a granted host, proves its host keys, and prepares it.
"""

from __future__ import annotations

import socket
import time
from typing import Any

from pydantic import BaseModel, ConfigDict

from gpubed.backends.virtualwall import journal, prepare, rspec
from gpubed.backends.virtualwall import login as logins
from gpubed.backends.virtualwall.config import Config
from gpubed.backends.virtualwall.connection import connect
from gpubed.backends.virtualwall.documents import Given
from gpubed.backends.virtualwall.reservation import Reservation
from gpubed.backends.virtualwall.slice_inputs import Group, Results, SliceInputs, TooFew
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths
from gpubed.nodes import host_keys
from gpubed.nodes.allocation import Node
from gpubed.nodes.ssh import SSH, CommandFailed, Unreachable
from gpubed.testbeds.driver import Change, Driver, NodeFailed, Properties, is_unknown

_SSH_S = 120.0
_PROOF_S = 120.0  # startup commands run some time after SSH answers
_LOOK_S = 2.0
_IGNORED = frozenset({"duration"})  # `gpubed renew` changes it
_IN_PLACE = frozenset({"testbed", "groups"})
_RELEASE_S = 300.0


class SliceDriver(Driver):
    """Inputs: see `SliceInputs`. Makes and releases a slice as a whole.

    The result's `grows` tells whether the aggregate can add nodes to a running slice.
    """

    def __init__(self, paths: ClusterPaths) -> None:
        self._paths = paths

    def diff(self, result: Properties, olds: Properties, news: Properties) -> Change:
        """Replace the slice for another request, key, aggregate or project; update it for the rest.

        An update requests nodes again that the testbed lacked, and new nodes if the slice can grow.
        """
        changed = {key for key in {*olds, *news} if olds.get(key) != news.get(key)} - _IGNORED
        replace = changed - _IN_PLACE
        if replace == {"request"} and result.get("grows"):
            replace -= {"request"} if rspec.added(olds["request"], news["request"]) else set()
        if "testbed" in changed and _aggregate(olds) != _aggregate(news):
            replace |= {"testbed"}
        if replace:
            # The new value may be unknown in a preview, such as that of a lost key.
            return Change(replace=sorted(replace), update=sorted(changed - replace))
        nodes = result.get("nodes", {})
        more = SliceInputs.of(news).missing(nodes)
        is_unfinished = more or any(node.get("booting") for node in nodes.values())
        return Change(update=sorted(changed | ({"nodes"} if is_unfinished else set())))

    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        """Make the slice, or adopt that of an interrupted run, and wait for its nodes."""
        reservation = self._reservation(inputs, is_requested=True)
        wanted = reservation.wanted
        try:
            results = reservation.judge(reservation.hold())
            wanted.require_enough(results)
        except GpubedError as error:
            down = f"gpubed down {wanted.cluster}"
            if reservation.is_a_failed_start:
                try:
                    reservation.release(_RELEASE_S)
                except GpubedError as kept:
                    error.hint = f"the testbed may still hold nodes ({kept.message}): {down}"
            elif isinstance(error, TooFew):
                error.hint = (
                    "the nodes stay, since they may be in use: a smaller `min` goes on without "
                    f"those that failed; or give all up: {down}"
                )
            raise
        return reservation.urn, _result(reservation, results)

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        """Return the slice's present state; an expired one is gone."""
        reservation = self._reservation(inputs, id)
        found = reservation.look()
        if found is None:
            return None
        return _result(reservation, reservation.judge(found))

    def update(self, id: str, olds: Properties, news: Properties) -> dict[str, Any]:  # noqa: A002
        """Request the nodes that the slice lacks, and use the new options to reach it."""
        reservation = self._reservation(news, id, is_requested=True)
        if olds["testbed"].get("login_keys") != news["testbed"].get("login_keys"):
            reservation.admit()
        found = reservation.complete(rspec.added(olds["request"], news["request"]))
        if found is None:
            raise GpubedError(
                f"the slice of {news['cluster']} is gone", f"gpubed up {news['cluster']} --refresh"
            )
        return _result(reservation, reservation.judge(found))

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        """Release all nodes. The slice itself stays, empty, until it expires."""
        self._reservation(inputs, id).release()

    def _reservation(
        self, inputs: Properties, urn: str = "", *, is_requested: bool = False
    ) -> Reservation:
        wanted = SliceInputs.of(inputs)
        there = connect(wanted.testbed)
        # Fails before nodes are requested that the bastion would not let us reach.
        if is_requested and wanted.testbed.bastion:
            logins.require(wanted.testbed.bastion, there.login)
            logins.renew_identity(wanted.testbed, there.login, self._paths)
        return Reservation(wanted, there, self._paths, urn=urn)


def _result(reservation: Reservation, nodes: Results) -> dict[str, Any]:
    return {"slice": reservation.urn, "nodes": nodes, "grows": reservation.grows}


def _aggregate(inputs: Properties) -> tuple[Any, Any]:
    testbed = inputs["testbed"]
    return testbed["aggregate"]["urn"], testbed["project"]


class Shared(BaseModel):
    """A folder that the testbed mounts on all nodes, and the path of its mount."""

    folder: str
    path: str


class NodeInputs(BaseModel):
    """All inputs; `granted` is the node's entry in its slice's result.

    Only `diff` reads a further input, `slice`, the slice's URN: in a preview it is known if the
    slice stays, while `granted` is known only if the slice does not change at all.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    cluster: str
    uuid: str
    name: str
    testbed: Config
    granted: Given
    mtu: int | None = None
    shared: Shared | None = None


class NodeDriver(Driver):
    """Inputs: see `NodeInputs`. Logs in to a granted machine, proves its host keys, prepares it."""

    def __init__(self, paths: ClusterPaths) -> None:
        self._paths = paths

    def diff(self, result: Properties, olds: Properties, news: Properties) -> Change:
        """Replace the node for another sliver; update it for other settings."""
        if is_unknown(news["granted"]):
            # A slice that changes in place keeps its nodes.
            is_another = is_unknown(news.get("slice")) or "slice" not in news
        else:
            is_another = olds["granted"].get("sliver") != news["granted"].get("sliver")
        if is_another:
            return Change(replace=["granted"])
        keys = ("granted", "testbed", "mtu", "shared")
        changed = [key for key in keys if olds.get(key) != news.get(key)]
        return Change(update=[key for key in changed if not is_unknown(news.get(key))])

    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        """Prove the host keys, and prepare the node."""
        node = NodeInputs.model_validate(inputs, extra="ignore")
        given = self._rebooted(node) if node.granted.failed else node.granted
        try:
            result = self._reached(node, given)
            with SSH(_node(node, result), self._paths) as ssh:
                ssh.wait_ready(_SSH_S)
                prepare.prepare(ssh, _settings(node, given))
        except (Unreachable, CommandFailed) as error:
            raise NodeFailed(error.message, error.hint) from None
        journal.save_node(self._paths, node.name, result)
        if node.shared:
            journal.note_part(self._paths, node.uuid, node.shared.folder, node.shared.path)
        return given.sliver, result

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        """Ask the testbed whether it still grants the node, which need not answer."""
        node = NodeInputs.model_validate(inputs, extra="ignore")
        logins.renew_identity(node.testbed, logins.load(node.testbed), self._paths)
        given = _granted_now(node, self._reservation(node))
        if given.failed or given.sliver != id:
            return None
        known = journal.load_node(self._paths, node.name)
        if known and known["id"] == id and not self._has_another_key(node, known):
            return known
        return self._reached(node, given)

    def update(self, id: str, olds: Properties, news: Properties) -> dict[str, Any]:  # noqa: A002
        """Prepare the node with the new settings."""
        return self.create(news)[1]

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        """Forget the node: its machine is released with the slice."""
        journal.forget_node(self._paths, inputs["name"])

    def _rebooted(self, node: NodeInputs) -> Given:
        """Boot a failed node once more; raise NodeFailed if it fails again."""
        given, failed = node.granted, node.granted.failed or ""
        if not given.sliver:
            raise NodeFailed(failed)
        try:
            reservation = self._reservation(node)
            reservation.restart(given.sliver)
            again = _granted_now(node, reservation)
        except GpubedError as error:
            raise NodeFailed(f"{failed}; booting it again failed: {error.message}") from None
        if again.failed or (given.linked and not again.interfaces):
            raise NodeFailed(again.failed or failed)
        return again

    def _reservation(self, node: NodeInputs) -> Reservation:
        alone = {"": Group(nodes=(node.name,), min=1)}
        wanted = SliceInputs(
            cluster=node.cluster, uuid=node.uuid, testbed=node.testbed, groups=alone, head=node.name
        )
        return Reservation(wanted, connect(node.testbed), self._paths, keeps=False)

    def _reached(self, node: NodeInputs, given: Given) -> dict[str, Any]:
        """Return the node's result: its address that answers SSH, and proved host keys."""
        via = logins.hops(node.testbed, logins.load(node.testbed), self._paths)
        result: dict[str, Any] = {
            "id": given.sliver,
            "control_address": "",
            "experiment_address": given.interfaces[0].address if given.interfaces else None,
            "port": given.port,
            "user": given.user,
            "host_keys": [],
            "via": [hop.model_dump(mode="json") for hop in via],
        }
        # A bastion may forward only to the public address.
        private = [address for address in (given.ipv4, given.host) if address]
        addresses = private if via else _resolved(node, given)
        address, presented = self._answering(node, result, addresses)
        result |= {"control_address": address, "host_keys": [presented]}
        if node.testbed.host_keys == "proved":
            result["host_keys"] = self._proved(node, result)
        return result

    def _answering(
        self, node: NodeInputs, result: dict[str, Any], addresses: list[str]
    ) -> tuple[str, str]:
        deadline = time.monotonic() + _SSH_S
        while True:
            for address in addresses:
                there = _node(node, {**result, "control_address": address})
                try:
                    return address, host_keys.presented(there, self._paths, 0)
                except Unreachable:
                    continue
            if time.monotonic() > deadline:
                where = f"{', '.join(addresses)} port {result['port']}"
                hint = "without IPv6, name the testbed's bastion in backend.bastion"
                message = f"{node.name} does not answer SSH on {where}"
                needs_ipv6 = node.testbed.nat and not result["via"]
                raise Unreachable(message, hint if needs_ipv6 else None)
            time.sleep(_LOOK_S)

    def _has_another_key(self, node: NodeInputs, known: dict[str, Any]) -> bool:
        """Return whether a node with proved keys shows another: reinstalled, or an impostor."""
        if node.testbed.host_keys == "first_use":
            return False
        try:
            key = host_keys.presented(_node(node, known), self._paths, 0)
        except Unreachable:
            return False
        return key not in known["host_keys"]

    def _proved(self, node: NodeInputs, result: dict[str, Any]) -> list[str]:
        deadline = time.monotonic() + _PROOF_S
        with SSH(_node(node, result), self._paths) as ssh:
            ssh.wait_ready(_SSH_S)
            while True:
                shown = ssh.run(prepare.SHOW, check=False)
                keys = prepare.proved(shown.stdout, prepare.token(self._paths))
                if not shown.exit_code and keys and result["host_keys"][0] in keys:
                    return list(keys)
                if time.monotonic() > deadline:
                    lack = "answers, but does not prove that it is the node that was granted"
                    hint = "if its image runs no startup commands: backend.host_keys: first_use"
                    raise Unreachable(f"{node.name} {lack}", hint)
                time.sleep(_LOOK_S)


def _granted_now(node: NodeInputs, reservation: Reservation) -> Given:
    found = reservation.look()
    return Given.model_validate(reservation.judge(found)[node.name]) if found else Given()


def _node(node: NodeInputs, result: dict[str, Any]) -> Node:
    return Node.model_validate({"name": node.name, "group": "", "role": "worker", **result})


def _resolved(node: NodeInputs, given: Given) -> list[str]:
    """Return the addresses of the node's host name; roles need addresses."""
    try:
        found = socket.getaddrinfo(given.host, given.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Unreachable(
            f"{node.name}: the testbed's name {given.host} does not resolve: {error.strerror}",
            "names of new nodes may take some minutes; then: gpubed up CLUSTER",
        ) from None
    return list(dict.fromkeys(str(info[4][0]) for info in found))


def _settings(node: NodeInputs, given: Given) -> dict[str, str]:
    settings = {"USER_NAME": given.user, "NAT": "yes" if node.testbed.nat else ""}
    for end in given.interfaces[:1]:
        settings |= {
            "EXPERIMENT_MAC": end.mac,
            "EXPERIMENT_ADDRESS": f"{end.address}/{end.prefix}",
            "EXPERIMENT_MTU": str(node.mtu or ""),
        }
    settings["EXTRA_PATH"] = node.testbed.extra_space or ""
    if node.shared:
        settings |= {"SHARED_SOURCE": node.shared.folder, "SHARED_PATH": node.shared.path}
    return settings
