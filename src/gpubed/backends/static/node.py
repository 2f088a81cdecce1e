"""The driver that makes a host a node: checks it, marks it, and adds the cluster's key."""

from __future__ import annotations

import fcntl
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpubed.backends.static import access, membership
from gpubed.backends.static.config import Config, host_of
from gpubed.backends.static.host import Found, candidate, is_node, look, problems
from gpubed.core import addresses, progress, record, runlock
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths, cache
from gpubed.nodes.ssh import SSH, LoginRefused, Unreachable
from gpubed.testbeds.driver import Change, Driver, NodeFailed, Properties, Silent
from gpubed.testbeds.options import TestbedOptions

# Inputs that may change without replacing the node.
_ACCESS = {"config", "gpus", "image", "public_key"}


class NodeDriver(Driver):
    """Inputs: cluster, uuid, name, host, config, image, gpus, public_key."""

    def __init__(self, reach: TestbedOptions, paths: ClusterPaths) -> None:
        self._reach, self._paths = reach, paths

    def diff(self, result: Properties, olds: Properties, news: Properties) -> Change:
        """Replace the node for another host; update it for another login to the same host.

        A new port of the same address is the same host, unless another host has the old port.
        """
        changed = {key for key in {*olds, *news} if olds.get(key) != news.get(key)}
        old, new = host_of(olds), host_of(news)
        stays = old.address == new.address and (old.port == new.port or not self._is_named(olds))
        in_place = {*_ACCESS, "host"} if stays else _ACCESS
        return Change(replace=sorted(changed - in_place), update=sorted(changed & in_place))

    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        """Check the host, mark it as the cluster's node, and add the cluster's key."""
        return self._joined(inputs, None)

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        """Return the node's data as `create` does, or None if the host no longer has its mark."""
        try:
            with self._connected(inputs) as ssh:
                found = look(ssh)
                if found.owner.get("id") != id or found.owner.get("uuid") != inputs["uuid"]:
                    return None
                return _result(ssh, id, found, inputs)
        except GpubedError as error:
            if _is_silence(error) or self._is_gone(error, inputs):
                raise Silent(f"{inputs['name']} cannot be checked: {error.message}") from error
            raise

    def update(self, id: str, olds: Properties, news: Properties) -> dict[str, Any]:  # noqa: A002
        """Join the host by its new access, and remove the key from a former account."""
        _, result = self._joined(news, id)
        former = olds["config"]["user"]
        if former != news["config"]["user"]:
            with self._connected(news) as ssh:
                membership.expel(ssh, former, news["uuid"])
        return result

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        """Remove the cluster's key and mark, and stop its services.

        A host stays as it is if it became another node of the cluster, or if the login fails and
        `gpubed down --without` names it or the specification no longer does.
        """
        uuid, host = inputs["uuid"], host_of(inputs)
        try:
            with _locked(inputs), self._connected(inputs) as ssh:
                if not is_node(look(ssh), inputs):
                    return
                # Engines remove a node before they create its replacement. A host that becomes
                # another node keeps its mark, to be found if that creation fails. Here, only the
                # account's key is removed; the creation removes the rest.
                heir = self._heir(inputs)
                if heir in ("", inputs["name"]):
                    membership.release(ssh, uuid, stays=bool(heir))
                else:
                    membership.expel(ssh, ssh.node.user, uuid)
        except GpubedError as error:
            if addresses.ssh(host.address, host.port) in record.read(self._paths).without:
                return  # `down` reports the remains
            if self._is_gone(error, inputs):
                message = (
                    f"{error.message}; it leaves the cluster as it is. When it is back, this "
                    f"removes the cluster from it: {membership.by_hand(uuid)}   "
                    "(packages and data stay)"
                )
                progress.emit("note", message=message)
                return
            if not _is_silence(error):
                raise
            cluster = self._paths.name
            raise GpubedError(
                error.message,
                f"wait for it; or remove it from hosts in {self._paths.spec}, and the node goes "
                "without it; or take the whole cluster down: "
                f"gpubed down {cluster} --without {inputs['name']}",
            ) from error

    def _joined(self, inputs: Properties, id_: str | None) -> tuple[str, dict[str, Any]]:
        """Make a host a node with the id `id_`, by default its present or a new one."""
        name, uuid = inputs["name"], inputs["uuid"]
        try:
            with _locked(inputs), self._connected(inputs) as ssh:
                found = candidate(ssh, self._reach.wanted)
                if wrong := problems(found, inputs):
                    raise NodeFailed(
                        f"{name} ({ssh.node.control_address}) {'; '.join(wrong)}",
                        "; ".join(filter(None, wrong.values())),
                    )
                if is_node(found, inputs):
                    id_ = id_ or found.owner["id"]
                elif found.owner:  # another node of the cluster: its services must stop
                    membership.release(ssh, uuid, stays=True)
                id_ = id_ or f"{name}-{secrets.token_hex(4)}"
                owner = {"uuid": uuid, "cluster": inputs["cluster"], "node": name, "id": id_}
                membership.admit(ssh, owner, inputs["public_key"], found.stays_open)
                return id_, _result(ssh, id_, found, inputs)
        except NodeFailed:
            raise
        except GpubedError as error:
            raise NodeFailed(error.message, error.hint) from error

    def _heir(self, inputs: Properties) -> str:
        """Return the node that a running `up` makes of this host; empty if it makes none."""
        run, spec = runlock.holder(self._paths.state), self._reach.wanted
        if not (run and run.verb == "up" and spec and isinstance(spec.backend, Config)):
            return ""
        place, hosts = _place(host_of(inputs)), access.wanted(spec)
        return next((name for name, host in hosts.items() if _place(host) == place), "")

    def _is_gone(self, error: GpubedError, inputs: Properties) -> bool:
        dead = isinstance(error, Unreachable) and not isinstance(error, LoginRefused)
        dead = dead and not getattr(error, "on_the_way", False)
        return (dead or isinstance(error, access.UnknownHost)) and not self._is_named(inputs)

    def _is_named(self, inputs: Properties) -> bool:
        """Return whether the specification names the host; true if it cannot be read."""
        spec = self._reach.wanted
        if spec is not None and not isinstance(spec.backend, Config):
            return False
        known = access.known(self._reach)
        places = {_place(host) for host, _ in access.each(known)} if known else set()
        return known is None or _place(host_of(inputs)) in places

    def _connected(self, inputs: Properties) -> SSH:
        config = _config(inputs)
        return SSH(access.door(config, host_of(inputs), inputs["name"]), self._paths, config.key)


@contextmanager
def _locked(inputs: Properties) -> Iterator[None]:
    """Lock a host: if hosts swap nodes, one node is removed while another is made."""
    host, folder = host_of(inputs), cache() / "hosts"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{host.address}-{host.port}").open("w") as place:
        fcntl.flock(place, fcntl.LOCK_EX)
        yield


def _place(host: Any) -> tuple[str, int]:
    return host.address, host.port


def _is_silence(error: GpubedError) -> bool:
    return isinstance(error, Unreachable) and error.is_silence


def _config(inputs: Properties) -> Config:
    # The state may have options of newer versions.
    return Config.model_validate({**inputs["config"], "hosts": {}}, extra="ignore")


def _result(ssh: SSH, id_: str, found: Found, inputs: Properties) -> dict[str, Any]:
    host, node = host_of(inputs), ssh.node
    lines = ssh.run("cat /etc/ssh/ssh_host_*_key.pub").stdout.splitlines()
    keys = [" ".join(line.split()[:2]) for line in lines]
    return {
        "id": id_,
        # The host's own address, as other nodes and bastions may not resolve its name.
        "control_address": found.own_address,
        "experiment_address": host.experiment_address and str(host.experiment_address),
        "port": node.port,
        "user": node.user,
        # Not those that the user has revoked.
        "host_keys": sorted(access.trusted(_config(inputs), host, keys)),
        "via": [hop.model_dump() for hop in node.via],
    }
