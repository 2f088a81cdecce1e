"""Checks the firewall from outside: only ports that the specification opens may answer.

The controller, or the last hop to the nodes, connects to every port on which a node listens. Each
node also gets a listener for some seconds, which another node must reach and the outside must not:
this proves that the check can fail.

In clouds, the last hop may be one of the nodes. Only its address is reachable from outside then.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from gpubed.checks.context import Context, judged
from gpubed.checks.registry import Stage, at
from gpubed.configuration import jupyterlab_port
from gpubed.core import parallel
from gpubed.nodes import answers
from gpubed.nodes.allocation import Node, host_as_node
from gpubed.nodes.answers import Answer
from gpubed.nodes.ssh import SSH
from gpubed.nodes.verification import Check

_CONNECT_S = 1.5
_LISTENER = (
    "import socket,time; s=socket.socket(); s.bind(('0.0.0.0', 0)); s.listen(8); "
    "print(s.getsockname()[1], flush=True); time.sleep(20)"
)
# The listener must not hold the session's stdout, or the command would not return.
_START = (
    "f=$(mktemp); (timeout 20 python3 -c %s >$f 2>/dev/null </dev/null &) ; "
    "for i in $(seq 50); do [ -s $f ] && break; sleep 0.1; done; cat $f; rm $f"
)
# Leaves out the ports that a host's owner used before, which role firewall keeps open.
_LISTENING = (
    "ss -Hltn | awk '{print $4}' | grep -Evx \".*:($(grep -os 'tcp:[0-9]*' "
    '/etc/gpubed/owner.ports | cut -d : -f 2 | paste -sd "|"))" || true'
)
_PORTS = 65535
_REACH = "timeout 3 bash -c %s"


@at(Stage.FABRIC, "firewall.closed")
def closed_from_outside(context: Context) -> Iterator[Check]:
    """Connect to each node's ports from outside of the cluster."""
    if not context.plan.spec.firewall.enabled:
        why = "the firewall is off in cluster.yml"
        yield Check(id="firewall.closed", result="skip", reason=why)
        return
    outside = _sessions_of_last_hop(context)
    ports = {node.name: found for node, found in context.on_each(_listening_and_canary)}

    def connect(node: Node, ssh: SSH) -> Check:
        if outside and node.name not in outside:
            why = "it has no address outside: it is reached through another node only"
            return Check(id="firewall.closed", node=node.name, result="skip", reason=why)
        return _verdict(context, node, outside.get(node.name, ssh), *ports[node.name])

    for _, check in context.on_each(connect):
        yield check


def _sessions_of_last_hop(context: Context) -> dict[str, SSH]:
    """Return a session with the last hop for each node that is this hop; empty without hops."""
    via = context.allocation.head.via
    if not via:
        return {}
    *before, last = via
    session = SSH(host_as_node(last, via=tuple(before)), context.cluster.paths, last.identity)
    keys = set(last.host_keys)
    return {node.name: session for node in context.allocation.nodes if keys & set(node.host_keys)}


def _listening_and_canary(_: Node, ssh: SSH) -> tuple[set[int], int]:
    canary = answers.of(ssh, "the test's own listener", ssh.run(_START, _LISTENER)).whole()
    answer = answers.of(ssh, _LISTENING, ssh.run(_LISTENING))
    local = ("127.", "[::1]", "[::ffff:127.")
    sockets = [text for text in answer.text.split() if not text.startswith(local)]
    ports = {text.rpartition(":")[2] for text in sockets}
    if len(ports) > _PORTS:
        raise answer.misfit("more ports than there are")
    return {_port(answer.part(text)) for text in ports}, _port(answer.part(str(canary)))


def _port(answer: Answer) -> int:
    if (port := answer.whole()) > _PORTS:
        raise answer.misfit("no port")
    return port


def _verdict(context: Context, node: Node, session: SSH, listening: set[int], canary: int) -> Check:
    open_ = {port for port in listening if port not in _allowed(context, node)}
    ports = sorted(open_ | {canary})
    results = parallel.each(partial(session.answers, timeout=_CONNECT_S), ports)
    answered = [port for port, yes in zip(ports, results, strict=True) if yes]
    reason = f"from outside, these ports answer: {answered}" if answered else ""
    if not answered and not _neighbour_reaches(context, node, canary):
        reason = "other nodes do not reach the test's own listener, so nothing was proved"
    count, limit = len(answered), "only SSH and what cluster.yml opens"
    return judged("firewall.closed", node.name, reason, count, limit, "open ports")


def _allowed(context: Context, node: Node) -> set[int]:
    spec = context.plan.spec
    allowed = {node.port, *(opening.port for opening in spec.firewall.open)}
    if node.role == "head" and spec.services.jupyterlab:
        allowed.add(jupyterlab_port.port(context.cluster))
    if node.role == "head":
        others = (spec.services.hub, spec.services.tracking, spec.services.serving)
        allowed |= {service.port for service in others if service}
    return allowed


def _neighbour_reaches(context: Context, node: Node, port: int) -> bool:
    nodes = context.allocation.nodes
    neighbour = nodes[(nodes.index(node) + 1) % len(nodes)]
    address = node.experiment_address or node.control_address
    probe = f"exec 3<>/dev/tcp/{address}/{port}"
    return context.sessions[neighbour.name].run(_REACH, probe, check=False).exit_code == 0
