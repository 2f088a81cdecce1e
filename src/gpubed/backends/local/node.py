"""Nodes: containers that boot systemd, or a virtual machine that does, and answer SSH."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from docker.errors import APIError, ImageNotFound, NotFound
from docker.models.containers import Container

from gpubed.backends.local import (
    condition,
    confinement,
    daemon,
    image,
    image_cache,
    ownership,
    runtime,
    runtimes,
)
from gpubed.backends.local.node_inputs import CONFINED, UPDATABLE, NodeInputs
from gpubed.core.errors import GpubedError
from gpubed.core.units import format_bytes
from gpubed.nodes import host_keys
from gpubed.testbeds.driver import UNKNOWN_TEXT, Change, Driver, NodeFailed, Properties

_BOOT_S = 180.0
_SSH_S = 30.0
_TAIL = 15


class NodeDriver(Driver):
    """Inputs: see `NodeInputs`. Limits and the link change in place; the rest replaces."""

    def diff(self, result: Properties, olds: Properties, news: Properties) -> Change:
        """Compare inputs; what was found broken about a node is an update: it is put right.

        A container stays, and with it what is on its disk, where it may do more than it must now,
        and where another version of gpubed would make another image of the same system. One that
        may do less than it must is replaced: Docker changes that of no container. It stays, too,
        where its network was lost and is made anew: a plan does not know the new one's name yet,
        which is the same.
        """
        changed = sorted(
            key for key in {*olds, *news} - {CONFINED} if olds.get(key) != news.get(key)
        )
        # Where the environment names no bundle, the node keeps the one that it has.
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
        """Make the node and wait until it answers SSH with the keys that it made itself."""
        node = NodeInputs.model_validate(inputs)
        with daemon.errors(f"make node {node.name}"):
            container = ownership.own(_find(node), node.owner)
            if container is not None and _serves(container, node):
                if runtime.is_in_use(container):
                    condition.mend(container, node)
                result = _up(container, node)
                # Its maker may have had another key, lost since with the state.
                _exchange_key(container, node)
                runtime.mark_made(container)
                return str(container.id), result
            self._discard(container, node, inputs)
            _vacate(node)
            container = _make(node)
            try:
                result = _up(container, node)
                runtime.mark_made(container)
                return str(container.id), result
            except Exception as error:
                # Nobody knows its id yet. If this fails too, the first error says more.
                with suppress(GpubedError):
                    self.delete("", inputs)
                if isinstance(error, GpubedError):
                    raise NodeFailed(error.message, error.hint) from error
                raise

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        """Look at the node; one that is stopped, or does not answer, is still there."""
        node = NodeInputs.model_validate(inputs)
        with daemon.errors(f"look at node {node.name}"):
            container = _find(node)
            if container is None or container.id != id:
                return None
            try:
                return _result(container, node, condition.faults(container, node))
            except NotFound:  # it never came as far as to make its host key
                return None

    def update(self, id: str, olds: Properties, news: Properties) -> dict[str, Any]:  # noqa: A002
        """Change limits and link of the running node; put right what was found broken."""
        node = NodeInputs.model_validate(news)
        with daemon.errors(f"change node {node.name}"):
            container = _find(node)
            if container is None:
                raise GpubedError(
                    f"node {node.name} is gone", f"gpubed up {node.cluster} makes it again"
                )
            _limit(container, node)
            container.reload()
            condition.mend(container, node)
            result = _up(container, node)
            if olds.get("public_key") != node.public_key:
                _exchange_key(container, node)
            return result

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        """Remove the node."""
        node = NodeInputs.model_validate(inputs)

        def ours() -> Container | None:
            found = _find(node)
            mine = found and ownership.labels(found).get(ownership.CLUSTER) == node.uuid
            return found if mine else None

        with daemon.errors(f"remove node {node.name}"):
            ownership.remove_until_gone(ours, lambda found: found.remove(force=True, v=True))
            _remove_own_volumes(node)
            confinement.tidy(node.uuid, node.name)

    def _discard(self, found: Container | None, node: NodeInputs, inputs: Properties) -> None:
        """Remove a leftover of other inputs, unless somebody may have put something on it.

        What a killed run was making is empty. A whole node that this run does not know is one
        whose state was lost: nobody has been asked for what is on its disk.
        """
        if found is not None and runtime.is_in_use(found):
            raise GpubedError(
                f"node {node.name} exists, in use, and was made from another specification than "
                "now: it would be replaced, with what is on its own disk",
                f"make inventories/{node.cluster}/cluster.yml what it was; or give the nodes up, "
                f"not the shared data: gpubed audit {node.cluster} --remove",
            )
        self.delete("", inputs)


def _serves(container: Container, node: NodeInputs) -> bool:
    """Return whether a container that the cluster has can be the node."""
    # Made from the same inputs, by whatever version of the image.
    its_image = container.attrs["Config"]["Image"]
    same = node.model_copy(update={"image": its_image}).digest == ownership.labels(container).get(
        ownership.DIGEST
    )
    if not (same and image.is_same_system(its_image, node.image)):
        return False
    if not node.confined and runtimes.of(node).told(container).get(CONFINED):
        return False
    # A killed run may have made it without all its networks; one in use has lost them since.
    return runtime.is_connected(container, node) or runtime.is_in_use(container)


def _find(node: NodeInputs) -> Container | None:
    try:
        return daemon.client().containers.get(node.owner.name(node.name))
    except NotFound:
        return None


def _vacate(node: NodeInputs) -> None:
    """Remove the cluster's node that still has this one's address, under another name.

    No address is in a plan twice: that node is to go, too. But the engine deletes last what is
    wanted no more, and until then no other node could start.
    """
    ownership.remove_until_gone(
        lambda: _holder(node), lambda found: found.remove(force=True, v=True)
    )


def _holder(node: NodeInputs) -> Container | None:
    labels = [f"{ownership.CLUSTER}={node.uuid}", ownership.NODE]
    for found in daemon.client().containers.list(
        all=True, filters={"label": labels}, ignore_removed=True
    ):
        if ownership.address(found, node.control.network) == node.control.address:
            return found
    return None


def _remove_own_volumes(node: NodeInputs) -> None:
    """Remove what a container that somebody else removed has left."""
    labels = [f"{ownership.CLUSTER}={node.uuid}", f"{ownership.NODE}={node.name}"]
    for volume in daemon.client().volumes.list(filters={"label": labels}):
        with suppress(NotFound):
            volume.remove()


def _make(node: NodeInputs) -> Container:
    try:
        return runtimes.of(node).make(node)
    except ImageNotFound:
        image_cache.restore(node.image)
        return runtimes.of(node).make(node)


def _up(container: Container, node: NodeInputs) -> dict[str, Any]:
    """Bring a container from any state to a node that is ready."""
    kind, was_running = runtimes.of(node), container.status == "running"
    with kind.turn(node):
        if not was_running:
            kind.prepare(container, node)
            _start(container, node)
        _await_boot(container, node)
    kind.trust(container)
    if node.link:
        # At boot it has run already; a failure there leaves a node that boots all the same.
        if was_running:
            kind.install_link(container, node)
        verb = "restart" if was_running else "start"
        _execute(container, node, ["systemctl", verb, "gpubed-link.service"])
    container.reload()
    result = _result(container, node)
    host_keys.prove(node.control.address, tuple(result["host_keys"]), timeout=_SSH_S)
    return result


def _limit(container: Container, node: NodeInputs) -> None:
    """Set the limits.

    Raises:
        GpubedError: The kernel refuses them: what a node uses already does not become less.
    """
    try:
        runtimes.of(node).limit(container, node)
    except APIError as error:
        said = "no limit" if node.memory is None else format_bytes(node.memory)
        raise GpubedError(
            f"node {node.name} does not take its limits (memory: {said}): {daemon.reason(error)}",
            f"raise machine.memory of its group (nodes:) in inventories/{node.cluster}/cluster.yml,"
            f" or end what uses memory there (gpubed ssh {node.cluster} {node.name}); then: "
            f"gpubed up {node.cluster}",
        ) from None


def _start(container: Container, node: NodeInputs) -> None:
    try:
        container.start()
    except APIError as error:
        why = f"{daemon.reason(error)}\n{_last_words(container, node)}"
        raise GpubedError(f"node {node.name} does not start: {why}") from None


def _await_boot(container: Container, node: NodeInputs) -> None:
    """Wait for systemd: an apt-get before that races with its cleaning of /tmp."""
    deadline, state = time.monotonic() + _BOOT_S, ""
    while time.monotonic() < deadline:
        container.reload()
        if container.status != "running":
            break
        # Fails at first, until systemd has a bus to be asked on.
        _, state = runtimes.of(node).run(container, ["systemctl", "is-system-running", "--wait"])
        if state in ("running", "degraded"):
            return
        time.sleep(0.3)
    raise GpubedError(
        f"node {node.name} does not boot (container {container.status}, systemd: "
        f"{state or 'silent'})\n{_last_words(container, node)}",
        "gpubed doctor",
    )


def _execute(container: Container, node: NodeInputs, command: list[str]) -> None:
    code, output = runtimes.of(node).run(container, command)
    if code:
        why = f"{output}\n{_last_words(container, node)}"
        raise GpubedError(f"`{' '.join(command)}` failed on node {node.name}: {why}")


def _exchange_key(container: Container, node: NodeInputs) -> None:
    code, output = runtimes.of(node).exchange_key(container, node)
    if code:
        raise GpubedError(f"node {node.name} does not take the cluster's new key: {output}")


def _last_words(container: Container, node: NodeInputs) -> str:
    lines = container.logs(tail=_TAIL).decode(errors="replace").splitlines()
    container.reload()
    if container.status == "running":
        command = ["journalctl", "--boot", "--no-pager", "--output=cat", f"--lines={_TAIL}"]
        lines += runtimes.of(node).run(container, command)[1].splitlines()
    return "\n".join(f"  | {line}" for line in lines)


def _result(container: Container, node: NodeInputs, faults: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "id": container.id,
        "control_address": node.control.address,
        "experiment_address": node.experiment.address if node.experiment else None,
        "host_keys": [runtimes.of(node).host_key(container)],
        "faults": list(faults),
        **runtimes.of(node).told(container),
    }


def _is_same_place(old: Any, new: Any) -> bool:
    """Whether an attachment has its address still, of a network that is not known yet."""
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)) or "network" not in new:
        return False
    unknown = new["network"] == UNKNOWN_TEXT or not isinstance(new["network"], str)
    return unknown and old.get("address") == new.get("address")
