"""What is wrong with a node that is there: found from outside, and put right in place."""

from __future__ import annotations

from contextlib import suppress

from docker.errors import NotFound
from docker.models.containers import Container

from gpubed.backends.local import daemon, runtimes
from gpubed.backends.local.node_inputs import Attachment, NodeInputs
from gpubed.nodes import host_keys
from gpubed.nodes.ssh import Unreachable

_ANSWER_S = 3.0
# A busy node answers late; what runs on it must not suffer from that.
_PATIENCE_S = 30.0
# An interface that was lost and came back is a new one: nothing shapes it.
_SHAPED = (
    'i=$(ip -oneline -4 address show to "$1" | awk "{ print \\$2; exit }") && '
    'tc qdisc show dev "$i" | grep -q htb'
)


def faults(container: Container, node: NodeInputs) -> list[str]:
    """Return what keeps a node from being what its inputs say, in words; none if all is well."""
    if container.status != "running":
        return [container.status]
    found = [f"not on {attachment.network}" for attachment in _missing(container, node)]
    if not _answers(container, node):
        found.append("does not answer SSH")
    if node.link and not found and not _is_shaped(container, node):
        found.append("link not shaped")
    return found


def mend(container: Container, node: NodeInputs) -> None:
    """Bring back what a container has lost; its link is shaped again when it is brought up."""
    if container.status == "paused":
        container.unpause()
    for attachment in _missing(container, node):
        network = daemon.client().networks.get(attachment.network)
        if attachment.network in _networks(container):
            network.disconnect(container, force=True)
        network.connect(container, ipv4_address=attachment.address)
    container.reload()
    if container.status != "running" or _answers(container, node):
        return
    runtimes.of(node).run(container, ["systemctl", "restart", "ssh.service"])
    if not _answers(container, node, _PATIENCE_S):
        container.restart()
        container.reload()


def _missing(container: Container, node: NodeInputs) -> list[Attachment]:
    wanted = [node.control, *([node.experiment] if node.experiment else [])]
    attached = _networks(container)
    # A container that does not run has no address, only the one that it asks for; it may hold on
    # to a network that is gone and was made anew under its name.
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


def _networks(container: Container) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = container.attrs["NetworkSettings"]["Networks"]
    return found


def _answers(container: Container, node: NodeInputs, timeout: float = _ANSWER_S) -> bool:
    try:
        key = runtimes.of(node).host_key(container)
        host_keys.prove(node.control.address, (key,), timeout=timeout)
    except (NotFound, Unreachable):
        return False
    return True


def _is_shaped(container: Container, node: NodeInputs) -> bool:
    address = node.experiment.address if node.experiment else ""
    return runtimes.of(node).run(container, ["sh", "-c", _SHAPED, "sh", address])[0] == 0
