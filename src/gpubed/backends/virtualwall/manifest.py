"""Reads the manifest: what each node became.

The testbed writes it, so names and addresses, which end up in commands and files, are checked. A
node that is not usable is a reason, not an error: the others may suffice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Any

from gpubed.backends.virtualwall import documents
from gpubed.backends.virtualwall.faults import Malformed

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]{0,252}[A-Za-z0-9])?")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}")
_PORT = re.compile(r"[0-9]{1,5}")
_MAC = re.compile(r"([0-9a-f]{12})?")
_BYTE = "(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])"
_IPV4 = re.compile(rf"{_BYTE}(\.{_BYTE}){{3}}")
_SSH = 22


@dataclass(frozen=True)
class Interface:
    """An end of a link: `mac` has colons, and may be empty."""

    mac: str
    address: str
    prefix: int


@dataclass(frozen=True)
class Granted:
    """A node as the manifest has it.

    Attributes:
        host: The name or address where SSH answers.
        ipv4: Its address on the testbed's control network; empty if it has none, or if the login
            leads through a port of its host.
        interfaces: Its ends of links; Emulab gives other interfaces no hardware.
    """

    sliver: str
    host: str
    port: int
    user: str
    ipv4: str
    machine: str
    interfaces: list[Interface]


def read(text: str, names: Iterable[str], user: str) -> tuple[dict[str, Granted], dict[str, str]]:
    """Return a manifest's usable nodes, and why others of `names` are not; `user` logs in best."""
    root = documents.rspec(text, "manifest")
    found: dict[str, Any] = {}
    for element in documents.children(root, "node"):
        name = element.get("client_id", "")
        if name in found:
            raise Malformed(f"the manifest lists node {name!r:.80} twice")
        found[name] = element
    ends = {end.get("client_id") for end in documents.children(root, "link", "interface_ref")}
    granted, reasons = {}, {}
    for name in names:
        try:
            if name not in found:
                raise Malformed("the manifest does not list it")
            granted[name] = _node(found[name], user, ends)
        except Malformed as error:
            reasons[name] = error.message
    return granted, reasons


def machines(text: str) -> frozenset[str]:
    """Return the component ids of the machines that a manifest grants."""
    nodes = documents.children(documents.rspec(text, "manifest"), "node")
    return frozenset(node.get("component_id", "") for node in nodes)


def _node(element: Any, user: str, ends: set[str | None]) -> Granted:
    sliver = element.get("sliver_id", "")
    if not sliver:
        raise Malformed("the manifest gives it no sliver: it belongs to another testbed")
    named = documents.children(element, "services", "login")
    logins = [one for one in named if one.get("authentication", "ssh-keys") == "ssh-keys"]
    if not logins:
        raise Malformed("the manifest names no login for it")
    login = next((login for login in logins if login.get("username") == user), logins[0])
    port = int(_checked(_PORT, login.get("port", str(_SSH)), "port"))
    if not 0 < port < 65536:
        raise Malformed(f"the manifest gives it the port {port}")
    hosts = [text for h in documents.children(element, "host") if (text := h.get("ipv4"))]
    control = _checked(_IPV4, hosts[0], "address") if hosts else ""
    linked = [i for i in documents.children(element, "interface") if i.get("client_id") in ends]
    return Granted(
        sliver=sliver,
        host=_checked(_HOST, login.get("hostname"), "host name"),
        port=port,
        user=_checked(_USER, login.get("username"), "user name"),
        ipv4=control if port == _SSH else "",
        machine=element.get("component_id", "").rsplit("+", 1)[-1],
        interfaces=[found for i in linked if (found := _interface(i))],
    )


def _checked(pattern: re.Pattern[str], text: str | None, what: str) -> str:
    if text is None or pattern.fullmatch(text) is None:
        raise Malformed(f"the manifest gives it the {what} {(text or '')[:80]!r}")
    return text


def _interface(element: Any) -> Interface | None:
    for ip in documents.children(element, "ip"):
        if ip.get("type", "ipv4") == "ipv4":
            try:
                prefix = IPv4Network(f"0.0.0.0/{ip.get('netmask', '')}").prefixlen
            except ValueError:
                raise Malformed("the manifest gives it an interface without a netmask") from None
            text = element.get("mac_address", "").replace(":", "").lower()
            mac = _checked(_MAC, text, "MAC address")
            colons = ":".join(mac[i : i + 2] for i in range(0, len(mac), 2))
            return Interface(colons, _checked(_IPV4, ip.get("address"), "address"), prefix)
    return None
