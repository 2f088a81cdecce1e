"""Breaks nodes that are containers, on purpose; see `gpubed chaos`."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Literal

from docker.errors import ContainerError, NotFound
from docker.models.containers import Container

from gpubed.backends.local import daemon, ownership
from gpubed.backends.local.ownership import Owner
from gpubed.core.errors import GpubedError
from gpubed.nodes.allocation import Allocation, Node
from gpubed.testbeds.breaker import Breaker, Harm

_SHELL = ("sh", "-c")
# What a confined node's own root may not do, a container beside it may.
_CAPABILITIES = ("SYS_ADMIN", "SYS_PTRACE")
_OPEN = ("apparmor=unconfined", "seccomp=unconfined")
_ENTER = ("nsenter", "--target", "1", "--mount", *_SHELL)


class ContainerBreaker(Breaker):
    """Breaks the containers of a cluster."""

    def __init__(self, allocation: Allocation) -> None:
        self._owner = Owner(allocation.cluster, allocation.uuid)

    def killed(self, node: Node) -> Harm:
        """Kill the container; Docker does not start again what was killed by hand."""

        def undo() -> None:
            if (found := _container(node)).status != "running":
                found.start()

        by_hand = f"docker start {self._name(node)}"
        return _harm("kill", node, lambda: _container(node).kill(), undo, by_hand)

    def removed(self, node: Node) -> Harm:
        """Remove the container, as `docker rm --force` does."""
        by_hand = f"gpubed up {self._owner.cluster}"
        return _harm("remove", node, lambda: _container(node).remove(force=True), None, by_hand)

    def frozen(self, node: Node) -> Harm:
        """Pause the container."""

        def undo() -> None:
            if (found := _container(node)).status == "paused":
                found.unpause()

        by_hand = f"docker unpause {self._name(node)}"
        return _harm("freeze", node, lambda: _container(node).pause(), undo, by_hand)

    def cut(self, node: Node, purpose: Literal["control", "experiment"]) -> Harm:
        """Disconnect the container; the interface that comes back is a new one, to be shaped."""
        name = self._owner.name(purpose)
        address = node.control_address if purpose == "control" else node.experiment_address

        def do() -> None:
            daemon.client().networks.get(name).disconnect(_container(node), force=True)

        def undo() -> None:
            found = _container(node)
            if name not in found.attrs["NetworkSettings"]["Networks"]:
                daemon.client().networks.get(name).connect(found, ipv4_address=address)

        back = f"docker network connect --ip {address} {name} {self._name(node)}"
        by_hand = f"{back} && gpubed up {self._owner.cluster}"
        return _harm("cut", node, do, undo, by_hand)

    def scripted(self, node: Node, do: str, undo: str, *, mounts: bool = False) -> Harm:
        """Run the scripts through Docker, so that no network is needed."""
        run = self._run_beside if mounts else _run
        by_hand = self._beside(node) if mounts else ["docker", "exec", self._name(node), *_SHELL]
        harm = _harm(
            "change",
            node,
            lambda: run(node, do),
            lambda: run(node, undo),
            shlex.join([*by_hand, undo]),
        )
        return replace(harm, script=undo, mounts=mounts)

    def _name(self, node: Node) -> str:
        return self._owner.name(node.name)

    def _beside(self, node: Node) -> list[str]:
        """Return the words before a script that mounts something."""
        rights = [f"--cap-add={name}" for name in _CAPABILITIES]
        rights += [f"--security-opt={option}" for option in _OPEN]
        image = _container(node).attrs["Config"]["Image"]
        where = f"--pid=container:{self._name(node)}"
        return ["docker", "run", "--rm", where, *rights, image, *_ENTER]

    def _run_beside(self, node: Node, script: str) -> None:
        found = _container(node)
        # No node's, whose names have no such sign. Who was killed has not removed it.
        name = self._owner.name(f"{node.name}_chaos")
        with suppress(NotFound):
            daemon.client().containers.get(name).remove(force=True)
        try:
            daemon.client().containers.run(
                found.attrs["Config"]["Image"],
                [*_ENTER, script],
                name=name,
                remove=True,
                pid_mode=f"container:{found.id}",
                cap_add=list(_CAPABILITIES),
                security_opt=list(_OPEN),
                labels={ownership.CLUSTER: self._owner.uuid, ownership.NAME: self._owner.cluster},
            )
        except ContainerError as error:
            raise GpubedError(f"cannot change {node.name}: {error}") from None


def _container(node: Node) -> Container:
    return daemon.client().containers.get(node.id)


def _run(node: Node, script: str) -> None:
    code, output = _container(node).exec_run([*_SHELL, script])
    if code:
        said = bytes(output).decode(errors="replace").strip()  # type: ignore[arg-type]
        raise GpubedError(f"cannot change {node.name}: {said}")


def _harm(
    verb: str,
    node: Node,
    do: Callable[[], None],
    undo: Callable[[], None] | None,
    by_hand: str,
) -> Harm:
    def telling(act: Callable[[], None]) -> Callable[[], None]:
        def acting() -> None:
            with daemon.errors(f"{verb} {node.name}, or mend it"):
                act()

        return acting

    return Harm(telling(do), undo and telling(undo), by_hand)
