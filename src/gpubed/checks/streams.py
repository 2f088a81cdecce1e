"""Checks streams: servers show their certificate, refuse strangers, and hold all replicas."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from gpubed.checks.context import Context, judged, skipped
from gpubed.checks.registry import Stage, at
from gpubed.core import reading
from gpubed.nodes import answers
from gpubed.nodes.allocation import Node
from gpubed.nodes.ssh import SSH
from gpubed.nodes.verification import Check

_IDS = ("streams.tls", "streams.stranger", "streams.replicas")
# NATS greets in clear text before TLS, so that `openssl s_client` cannot ask. Prints the server's
# answer to the account's password, and to none.
_ASK = """
import json, os, re, socket, ssl
own = json.load(open(os.path.expanduser("~/.config/gpubed/streams.json")))
host, port = re.fullmatch("tls://(.*):([0-9]+)", own["url"]).groups()
def ask(login):
    try:
        plain = socket.create_connection((host, int(port)), timeout=10)
        if b'"tls_required":true' not in plain.recv(4096):
            return "takes connections without TLS"
        server = ssl.create_default_context(cafile=own["ca"]).wrap_socket(
            plain, server_hostname=host
        )
        told = json.dumps({"verbose": False, "pedantic": False, "lang": "check", **login})
        server.sendall(f"CONNECT {told}\\r\\nPING\\r\\n".encode())
        return server.recv(4096).decode(errors="replace").splitlines()[0]
    except (OSError, IndexError) as error:
        return f"does not answer: {error}"
print(ask({"user": own["user"], "pass": own["password"]}))
print(ask({}))
"""
# A server that has just started is not ready yet.
_REPLICAS = (
    "for i in $(seq 30); do curl --silent --fail --noproxy '*' --max-time 5 -o /dev/null "
    "http://127.0.0.1:8222/healthz && break; sleep 1; done; "
    "curl --silent --fail --noproxy '*' --max-time 5 http://127.0.0.1:8222/jsz"
)


class _Replica(BaseModel):
    name: str
    current: bool = False
    offline: bool = False


class _Servers(BaseModel):
    leader: str = ""
    cluster_size: int = 0
    replicas: tuple[_Replica, ...] = ()


class Figures(BaseModel):
    """What a server says of itself and, if it leads, of the others."""

    meta_cluster: _Servers | None = None


@at(Stage.SERVICES, *_IDS)
def streams(context: Context) -> Iterator[Check]:
    """Log in to the head's server with and without a password; ask each server for the others."""
    wanted = context.plan.spec.services.streams
    if wanted is None:
        yield from skipped(_IDS, "the cluster has no streams")
        return
    head = context.allocation.head.name
    said = context.head.run("python3 -", stdin=_ASK, check=False).stdout.splitlines() or [""]
    for id_, answer, right in (
        ("streams.tls", said[0], "PONG"),
        ("streams.stranger", said[-1], "-ERR 'Authorization Violation'"),
    ):
        reason = "" if answer == right else _repaired(f"the server answers {answer!r}")
        yield judged(id_, head, reason, answer, right)

    def look(node: Node, ssh: SSH) -> str:
        answer = ssh.run(_REPLICAS, check=False)
        if answer.exit_code:
            return "its server does not answer"
        try:
            return _missing(
                answers.of(ssh, "its server's figures", answer).json(Figures), wanted.replicas
            )
        except reading.Unreadable as error:
            return error.message

    servers = {node.name for node in context.allocation.nodes[: wanted.replicas]}
    for node, reason in context.on_each(lambda n, s: look(n, s) if n.name in servers else ""):
        if node.name in servers:
            limit = f"{wanted.replicas} servers, all current"
            yield judged("streams.replicas", node.name, _repaired(reason), limit=limit)


def _missing(figures: Figures, replicas: int) -> str:
    if replicas == 1:
        return ""
    servers = figures.meta_cluster or _Servers()
    if not servers.leader or servers.cluster_size != replicas:
        return f"it knows {servers.cluster_size} servers instead of {replicas}, or no leader"
    behind = [one.name for one in servers.replicas if one.offline or not one.current]
    return f"{', '.join(behind)} lack behind" if behind else ""


def _repaired(reason: str) -> str:
    return f"{reason}; repair: gpubed configure CLUSTER --tags streams" if reason else ""
