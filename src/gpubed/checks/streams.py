"""Checks streams: each server shows its certificate, refuses strangers and is with the others."""

from __future__ import annotations

from collections.abc import Iterator

from gpubed.checks.context import Context, judged, skipped
from gpubed.checks.registry import Stage, at
from gpubed.nodes.allocation import Node
from gpubed.nodes.ssh import SSH
from gpubed.nodes.verification import Check

_RIGHT = {
    "streams.replicas": "ok",
    "streams.tls": "PONG",
    "streams.stranger": "-ERR 'Authorization Violation'",
}
# NATS greets in clear text before TLS, so that `openssl s_client` cannot ask. Prints whether
# the server has all that the leader has, and its answers to the account's password and to none.
_ASK = """
import json, os, socket, ssl, sys, time, urllib.request
os.environ["no_proxy"] = "*"
own = json.load(open(os.path.expanduser("~/.config/gpubed/streams.json")))
def health():
    url, end = f"http://127.0.0.1:8222/{own['password']}/healthz", time.monotonic() + 30
    while True:
        try:
            return json.load(urllib.request.urlopen(url, timeout=10))["status"]
        except OSError:  # a server that has just started is not ready yet
            if time.monotonic() > end:
                raise
            time.sleep(1)
def login(**words):
    plain = socket.create_connection((sys.argv[1], int(own["url"].split(":")[2])), timeout=10)
    if b'"tls_required":true' not in plain.recv(4096):
        return "it takes connections without TLS"
    server = ssl.create_default_context(cafile=own["ca"]).wrap_socket(
        plain, server_hostname=sys.argv[1]
    )
    told = json.dumps({"verbose": False, "pedantic": False, "lang": "check", **words})
    server.sendall(f"CONNECT {told}\\r\\nPING\\r\\n".encode())
    return server.recv(4096).decode(errors="replace").splitlines()[0]
for ask in health, (lambda: login(user=own["user"], **{"pass": own["password"]})), login:
    try:
        print(ask())
    except (OSError, IndexError) as error:
        print("no answer:", error)
"""


@at(Stage.SERVICES, *_RIGHT)
def streams(context: Context) -> Iterator[Check]:
    """Log in to each server with and without a password; ask it whether it is with the others."""
    wanted = context.plan.spec.services.streams
    if wanted is None:
        yield from skipped(_RIGHT, "the cluster has no streams")
        return
    servers = [node.name for node in context.allocation.nodes[: wanted.replicas]]

    def ask(node: Node, ssh: SSH) -> list[str]:
        if node.name not in servers:
            return []
        return ssh.run(f"python3 - {node.name}", stdin=_ASK, check=False).stdout.splitlines()

    for node, said in context.on_each(ask)[: wanted.replicas]:
        answers = dict(zip(_RIGHT, said, strict=False))
        for id_, right in _RIGHT.items():
            answer = answers.get(id_, "")
            reason = (
                f"the server answers {answer!r}; repair: gpubed configure CLUSTER --tags streams"
            )
            yield judged(id_, node.name, "" if answer == right else reason, answer, right)
