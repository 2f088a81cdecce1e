"""What a cluster that runs shows to its networks: ports, SSH, and JupyterLab's TLS and headers.

`python -m tests.exposure CLUSTER` asks from this machine and from one beyond it, and writes
docs/reference/security.md. Exits with 1 where something is open that is not declared, or
weaker than the page of the threat model promises. It needs root, iptables and openssl.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest does

from support.cluster import BIN, ROOT
from support.neighbour import bridge_of
from support.outsider import outsider, scan

PAGE = ROOT / "docs/reference/security.md"
ALL_PORTS = range(1, 65536)
HEAD = """# Security: what a cluster shows

`make exposure CLUSTER=lab` measured this on a cluster of local nodes with JupyterLab.
What is promised, and the tests behind it: [the threat model](../concepts/security.md).
"""
# Of OpenSSL's names; the older two are built into it for those who ask.
PROTOCOLS = {"TLS 1.0": "-tls1", "TLS 1.1": "-tls1_1", "TLS 1.2": "-tls1_2", "TLS 1.3": "-tls1_3"}
KINDS = {"kex": "key exchange", "key": "host key", "enc": "encryption", "mac": "integrity"}
# What stays, and why: Debian 12's OpenSSH and paramiko have no newer one in common.
_NO_OTHER = {
    "warn: does not provide protection against post-quantum attacks": "; it stays: the only "
    "better one that paramiko knows came with OpenSSH 9.9, and OpenSSH's clients choose one first"
}
KNOWN = {"curve25519-sha256": _NO_OTHER, "curve25519-sha256@libssh.org": _NO_OTHER}
HEADERS = (
    "Strict-Transport-Security",
    "Content-Security-Policy",
    "X-Content-Type-Options",
    "Referrer-Policy",
    "Set-Cookie",
)


def main() -> int:
    """Measure, write the page, and say what should not be."""
    [name] = sys.argv[1:]
    status = asked("status", name)
    nodes = {node["name"]: node["control_address"] for node in status["nodes"]}
    [url] = [one["url"] for one in status["services"] if one["name"] == "jupyterlab"]
    lab = urlsplit(url).port
    head = next(iter(nodes.values()))
    sections = [ports(nodes, lab), ssh(head), tls(head, lab), pages(head, lab)]
    PAGE.write_text("\n".join([HEAD, *(text for text, _ in sections)]), encoding="utf-8")
    wrong = [line for _, lines in sections for line in lines]
    print(*wrong or [f"as promised; {PAGE.relative_to(ROOT)} is written"], sep="\n")
    return int(bool(wrong))


def asked(verb: str, *words: str) -> dict:
    command = [str(BIN / "gpubed"), verb, *words, "--json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def ports(nodes: dict[str, str], lab: int) -> tuple[str, list[str]]:
    """Knock at every TCP port of every node, from here and from beyond."""
    with outsider(bridge_of(next(iter(nodes.values())))) as beyond:
        places = {"this controller": None, "a machine beyond it": beyond}
        answers = {
            (place, node): scan(namespace, address, ALL_PORTS)
            for place, namespace in places.items()
            for node, address in nodes.items()
        }
    rows = [(*where, ", ".join(map(str, sorted(some)))) for where, some in answers.items()]
    declared = {("this controller", next(iter(nodes))): {22, lab}}
    wrong = [
        f"{node} answers {place} on {sorted(some)}"
        for (place, node), some in answers.items()
        if some != declared.get((place, node), {22})
    ]
    return section("TCP ports that answer, of 65,535", ("from", "node", "open"), rows), wrong


def ssh(address: str) -> tuple[str, list[str]]:
    """Let ssh-audit judge a node's SSH server."""
    command = [str(BIN / "ssh-audit"), "--json", "--skip-rate-test", address]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rows, wrong = judged(json.loads(done.stdout))
    return section("SSH, as ssh-audit judges it", ("", "offered", "above *info*"), rows), wrong


def judged(found: dict) -> tuple[list[tuple[str, ...]], list[str]]:
    """Return what is offered with what is said of it, and what of that is not known here."""
    rows, wrong = [], []
    for kind, what in KINDS.items():
        for one in found[kind]:
            name, notes = one["algorithm"], one.get("notes", {})
            said = [
                f"{level}: {text}" for level in ("fail", "warn") for text in notes.get(level, ())
            ]
            why = KNOWN.get(name, {})
            rows.append((what, name, "; ".join(f"{s}{why.get(s, '')}" for s in said)))
            wrong += [f"SSH: {name}: {text}" for text in said if text not in why]
    return rows, wrong


def tls(address: str, port: int) -> tuple[str, list[str]]:
    """Find every protocol and cipher suite that JupyterLab's server takes."""
    taken = {name: list(suites(address, port, flag)) for name, flag in PROTOCOLS.items()}
    rows = [(name, ", ".join(found) or "refused") for name, found in taken.items()]
    wrong = [f"{name} is accepted" for name in ("TLS 1.0", "TLS 1.1") if taken[name]]
    wrong += [
        f"{suite} is not authenticated encryption"
        for suite in taken["TLS 1.2"]
        if not re.search("GCM|POLY1305", suite)
    ]
    return section("JupyterLab's TLS", ("protocol", "cipher suites"), rows), wrong


def suites(address: str, port: int, flag: str) -> Iterator[str]:
    """Yield the server's choice, then its choice of the rest, until it has none."""
    new = flag == "-tls1_3"
    left = ["TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"]
    refused = ""
    while left:
        offer = (
            ["-ciphersuites", ":".join(left)] if new else ["-cipher", f"ALL{refused}:@SECLEVEL=0"]
        )
        command = ["openssl", "s_client", "-connect", f"{address}:{port}", flag, *offer]
        done = subprocess.run(command, input="", capture_output=True, text=True, check=False)
        chosen = re.search(r"Cipher is (\S+)", done.stdout)
        if chosen is None or chosen[1] in ("(NONE)", "0000"):
            return
        yield chosen[1]
        refused += f":!{chosen[1]}"
        left = [one for one in left if one != chosen[1]] if new else left


def pages(address: str, port: int) -> tuple[str, list[str]]:
    """Ask JupyterLab as a stranger, and under a name that is not its own."""
    status, headers = get(address, port, "/login")
    foreign, _ = get(address, port, "/login", Host="evil.example")
    api, _ = get(address, port, "/api/contents")
    rows = [("/api/contents without a token", str(api)), ("a foreign `Host`", str(foreign))]
    # Of cookies the attributes count, not the value.
    rows += [
        (f"`{name}`", f"`{re.sub('=[^;]+', '=…', value, count=1) if 'Cookie' in name else value}`")
        for name, value in headers.items()
        if name in HEADERS
    ]
    wrong = [] if status == 200 else [f"the login page is answered with {status}"]
    wrong += [] if api == 403 else [f"/api/contents is answered with {api} without a token"]
    wrong += [] if foreign == 421 else [f"a foreign Host is answered with {foreign}"]
    wrong += [f"there is no {h}" for h in HEADERS[:1] if h not in headers]
    return section("JupyterLab's answers", ("asked", "answer"), rows), wrong


def get(address: str, port: int, path: str, **headers: str) -> tuple[int, dict[str, str]]:
    """Return status and headers; whose certificate it is, others test."""
    context = ssl._create_unverified_context()
    connection = http.client.HTTPSConnection(address, port, context=context, timeout=30)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders())


def section(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a section with a table."""
    lines = [f"## {title}", "", f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows), ""])


if __name__ == "__main__":
    sys.exit(main())
