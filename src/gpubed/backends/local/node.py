"""The driver of nodes: containers, or virtual machines in containers, that boot systemd."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from docker.errors import APIError, ImageNotFound, NotFound
from docker.models.containers import Container

from gpubed.backends.local import daemon, image, ownership, runtime
from gpubed.backends.local.container import runtime_of, tidy
from gpubed.backends.local.runtime import CONFINED, UPDATABLE, Attachment, NodeInputs
from gpubed.core.errors import GpubedError
from gpubed.core.units import format_bytes
from gpubed.nodes import host_keys
from gpubed.nodes.ssh import Unreachable
from gpubed.testbeds.driver import UNKNOWN_TEXT, Change, Driver, NodeFailed, Properties

_BOOT_S = 180.0
_SSH_S = 30.0
_TAIL = 15
_ANSWER_S = 3.0
_PATIENCE_S = 30.0  # a busy node answers late, and must not be restarted
# Fails for an interface that is not shaped, as after its network was lost and came back.
_SHAPED = (
    'i=$(ip -oneline -4 address show to "$1" | awk "{ print \\$2; exit }") && '
    'tc qdisc show dev "$i" | grep -q htb'
)


class NodeDriver(Driver):
    """Inputs: see `NodeInputs`. Those in `UPDATABLE` change in place, others replace the node."""

    def diff(self, result: Properties, olds: Properties, news: Properties) -> Change:
        """Compare inputs; faults that `read` found are updates, which repair them.

        A container with more rights than needed is kept, and one whose image of the same system
        has another version, or whose lost network is made again. A container that lacks rights is
        replaced, since Docker cannot add them.
        """
        changed = sorted(
            key for key in {*olds, *news} - {CONFINED} if olds.get(key) != news.get(key)
        )
        # Without a CA bundle in the environment, the node keeps its present one.
        changed = [key for key in changed if key != "certificates" or key in news]
        changed = [key for key in changed if not _is_same_place(olds.get(key), news.get(key))]
        if image.is_same_system(str(olds.get("image")), str(news.get("image"))):
            changed = [key for key in changed if key != "image"]
        if result.get(CONFINED) and not news.get(CONFINED):
            changed.append(CONFINED)
        update = [key for key in changed if key in UPDATABLE]
        update += result.get("faults", [])
        return Change(replace=[key for key in changed if key not in UPDATABLE], update=update)

    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        """Make the node, or adopt it, and wait until it answers SSH with its own host key."""
        node = NodeInputs.model_validate(inputs)
        with daemon.errors(f"make node {node.name}"):
            container = ownership.own(_find(node), node.owner)
            if container is not None and _is_reusable(container, node):
                if runtime.is_in_use(container):
                    _mend(container, node)
                result = _up(container, node)
                # The key that the node was made with may be lost with the state.
                _exchange_key(container, node)
                runtime.mark_made(container)
                return str(container.id), result
            if container is not None and runtime.is_in_use(container):
                # The state was lost, so the user was not asked about the data on the node's disk.
                raise GpubedError(
                    f"node {node.name} exists, in use, and was made from another specification: "
                    "its replacement would delete its own disk",
                    f"restore the former inventories/{node.cluster}/cluster.yml; or give the nodes "
                    f"up, not the shared data: gpubed audit {node.cluster} --remove",
                )
            self.delete("", inputs)
            _vacate(node)
            try:
                container = runtime_of(node).make(node)
                result = _up(container, node)
                runtime.mark_made(container)
                return str(container.id), result
            except ImageNotFound:
                up = f"gpubed up {node.cluster} --refresh"
                raise NodeFailed(f"the node image {node.image} is gone", up) from None
            except Exception as error:
                # Pulumi's state does not have the node yet. The first error tells more.
                with suppress(GpubedError):
                    self.delete("", inputs)
                if isinstance(error, GpubedError):
                    raise NodeFailed(error.message, error.hint) from error
                raise

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        """Return the node's result with its faults; a stopped or silent node still exists."""
        node = NodeInputs.model_validate(inputs)
        with daemon.errors(f"look at node {node.name}"):
            container = _find(node)
            if container is None or container.id != id:
                return None
            try:
                return _result(container, node, _faults(container, node))
            except NotFound:  # it has no host key yet
                return None

    def update(self, id: str, olds: Properties, news: Properties) -> dict[str, Any]:  # noqa: A002
        """Change limits and link of the running node, and repair its faults."""
        node = NodeInputs.model_validate(news)
        with daemon.errors(f"change node {node.name}"):
            container = _find(node)
            if container is None:
                raise GpubedError(
                    f"node {node.name} is gone", f"gpubed up {node.cluster} makes it again"
                )
            try:
                runtime_of(node).limit(container, node)
            except APIError as error:  # such as a limit below the memory in use
                memory = "no limit" if node.memory is None else format_bytes(node.memory)
                raise GpubedError(
                    f"node {node.name} does not take its limits (memory: {memory}): "
                    f"{daemon.reason(error)}",
                    f"raise machine.memory in inventories/{node.cluster}/cluster.yml, or end "
                    f"programs on {node.name}; then: gpubed up {node.cluster}",
                ) from None
            container.reload()
            _mend(container, node)
            result = _up(container, node)
            if olds.get("public_key") != node.public_key:
                _exchange_key(container, node)
            return result

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        """Remove the node."""
        node = NodeInputs.model_validate(inputs)

        def ours() -> Container | None:
            return ownership.ours(_find(node), inputs)

        with daemon.errors(f"remove node {node.name}"):
            ownership.remove_until_gone(ours, lambda found: found.remove(force=True, v=True))
            tidy(node.uuid, node.name)


def _is_reusable(container: Container, node: NodeInputs) -> bool:
    # The version of the image does not matter.
    its_image = container.attrs["Config"]["Image"]
    same = node.model_copy(update={"image": its_image}).digest == ownership.labels(container).get(
        ownership.DIGEST
    )
    if not (same and image.is_same_system(its_image, node.image)):
        return False
    if not node.confined and runtime_of(node).told(container).get(CONFINED):
        return False
    # A killed run may have left it without networks; a node in use has lost them later.
    return not _missing(container, node) or runtime.is_in_use(container)


def _find(node: NodeInputs) -> Container | None:
    try:
        return daemon.client().containers.get(node.owner.name(node.name))
    except NotFound:
        return None


def _vacate(node: NodeInputs) -> None:
    """Remove another node with this address, which Pulumi would delete later."""
    labels = [f"{ownership.CLUSTER}={node.uuid}", ownership.NODE]

    def holder() -> Container | None:
        listed = daemon.client().containers.list
        found = listed(all=True, filters={"label": labels}, ignore_removed=True)
        control = node.control
        has = [c for c in found if ownership.address(c, control.network) == control.address]
        return next(iter(has), None)

    ownership.remove_until_gone(holder, lambda found: found.remove(force=True, v=True))


def _up(container: Container, node: NodeInputs) -> dict[str, Any]:
    kind, was_running = runtime_of(node), container.status == "running"
    with kind.turn(node):
        if not was_running:
            kind.prepare(container, node)
            try:
                container.start()
            except APIError as error:
                why = f"{daemon.reason(error)}\n{_last_words(container, node)}"
                raise GpubedError(f"node {node.name} does not start: {why}") from None
        _await_boot(container, node)
    kind.trust(container)
    if node.link:
        # The service has run at boot; `start` reports its failure.
        if was_running:
            kind.install_link(container, node)
        verb = "restart" if was_running else "start"
        code, output = kind.run(container, ["systemctl", verb, "gpubed-link.service"])
        if code:
            why = f"{output}\n{_last_words(container, node)}"
            raise GpubedError(f"gpubed-link.service fails on node {node.name}: {why}")
    container.reload()
    result = _result(container, node)
    host_keys.prove(node.control.address, tuple(result["host_keys"]), timeout=_SSH_S)
    return result


def _await_boot(container: Container, node: NodeInputs) -> None:
    """Wait until systemd is up: until then, it removes files that apt-get has in /tmp."""
    deadline, state = time.monotonic() + _BOOT_S, ""
    while time.monotonic() < deadline:
        container.reload()
        if container.status != "running":
            break
        # Fails until systemd is on its bus.
        _, state = runtime_of(node).run(container, ["systemctl", "is-system-running", "--wait"])
        if state in ("running", "degraded"):
            return
        time.sleep(0.3)
    raise GpubedError(
        f"node {node.name} does not boot (container {container.status}, systemd: "
        f"{state or 'silent'})\n{_last_words(container, node)}",
        "gpubed doctor",
    )


def _exchange_key(container: Container, node: NodeInputs) -> None:
    code, output = runtime_of(node).exchange_key(container, node)
    if code:
        raise GpubedError(f"node {node.name} does not take the cluster's new key: {output}")


def _last_words(container: Container, node: NodeInputs) -> str:
    lines = container.logs(tail=_TAIL).decode(errors="replace").splitlines()
    container.reload()
    if container.status == "running":
        command = ["journalctl", "--boot", "--no-pager", "--output=cat", f"--lines={_TAIL}"]
        lines += runtime_of(node).run(container, command)[1].splitlines()
    return "\n".join(f"  | {line}" for line in lines)


def _result(container: Container, node: NodeInputs, faults: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "id": container.id,
        "control_address": node.control.address,
        "experiment_address": node.experiment.address if node.experiment else None,
        "host_keys": [runtime_of(node).host_key(container)],
        "faults": list(faults),
        **runtime_of(node).told(container),
    }


def _is_same_place(old: Any, new: Any) -> bool:
    """Return whether an attachment keeps its address in a network whose name is still unknown."""
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)) or "network" not in new:
        return False
    unknown = new["network"] == UNKNOWN_TEXT or not isinstance(new["network"], str)
    return unknown and old.get("address") == new.get("address")


def _faults(container: Container, node: NodeInputs) -> list[str]:
    if container.status != "running":
        return [container.status]
    found = [f"not on {attachment.network}" for attachment in _missing(container, node)]
    if not _answers(container, node):
        found.append("does not answer SSH")
    if node.link and node.experiment and not found:
        shaped = ["sh", "-c", _SHAPED, "sh", node.experiment.address]
        if runtime_of(node).run(container, shaped)[0]:
            found.append("link not shaped")
    return found


def _mend(container: Container, node: NodeInputs) -> None:
    if container.status == "paused":
        container.unpause()
    for attachment in _missing(container, node):
        network = daemon.client().networks.get(attachment.network)
        if attachment.network in container.attrs["NetworkSettings"]["Networks"]:
            network.disconnect(container, force=True)
        network.connect(container, ipv4_address=attachment.address)
    container.reload()
    if container.status != "running" or _answers(container, node):
        return
    runtime_of(node).run(container, ["systemctl", "restart", "ssh.service"])
    if not _answers(container, node, _PATIENCE_S):
        container.restart()
        container.reload()


def _missing(container: Container, node: NodeInputs) -> list[Attachment]:
    wanted = [node.control, *([node.experiment] if node.experiment else [])]
    attached = container.attrs["NetworkSettings"]["Networks"]
    # A stopped container has no address yet. It may refer to a network that was recreated under its
    # name.
    return [
        attachment
        for attachment in wanted
        if attachment.network not in attached
        or attached[attachment.network]["IPAddress"] not in ("", attachment.address)
        or attached[attachment.network]["NetworkID"] not in ("", _id_of(attachment.network))
    ]


def _id_of(network: str) -> str:
    with suppress(NotFound):
        return str(daemon.client().networks.get(network).id)
    return ""


def _answers(container: Container, node: NodeInputs, timeout: float = _ANSWER_S) -> bool:
    try:
        key = runtime_of(node).host_key(container)
        host_keys.prove(node.control.address, (key,), timeout=timeout)
    except (NotFound, Unreachable):
        return False
    return True
