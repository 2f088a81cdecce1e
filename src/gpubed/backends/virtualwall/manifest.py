"""The manifest: what each node became. Written by the testbed, so nothing in it is believed.

Names and addresses end up in commands and files, so they must look like names and
addresses. A node that is not usable is a reason, not an error: others may be enough.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from gpubed.backends.virtualwall import documents
from gpubed.backends.virtualwall.faults import Malformed

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]{0,252}[A-Za-z0-9])?")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}")
_PORT = re.compile(r"[0-9]{1,5}")
_MAC = re.compile(r"[0-9a-f]{12}")
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
        name: In the request.
        sliver: Its URN.
        host: Where SSH answers, a name or an address.
        port: Of SSH.
        user: Who may log in.
        ipv4: Its address on the testbed's control network; empty where there is none, or where
            the login leads through a port of its host.
        machine: The testbed's name of the machine.
        interfaces: Its ends of links.
    """

    name: str
    sliver: str
    host: str
    port: int
    user: str
    ipv4: str
    machine: str
    interfaces: tuple[Interface, ...]


def read(text: str, names: Iterable[str], user: str) -> tuple[dict[str, Granted], dict[str, str]]:
    """Read a manifest.

    Args:
        names: The nodes that were asked for.
        user: Our name, whose login is preferred.

    Returns:
        The usable nodes, and the reasons why others are not.

    Raises:
        Malformed: It is no manifest, or names a node twice.
    """
    root = documents.parse(text, "the manifest")
    if documents.local(root) != "rspec" or root.get("type") != "manifest":
        raise Malformed("the testbed answered with something else than a manifest")
    found: dict[str, Any] = {}
    for element in documents.children(root, "node"):
        name = element.get("client_id", "")
        if name in found:
            raise Malformed(f"the manifest lists node {name!r:.80} twice")
        found[name] = element
    granted, reasons = {}, {}
    for name in names:
        try:
            if name not in found:
                raise Malformed("the manifest does not list it")
            granted[name] = _node(name, found[name], user)
        except Malformed as error:
            reasons[name] = error.message
    return granted, reasons


def machines(text: str) -> frozenset[str]:
    """Return the component ids of the machines that a manifest grants."""
    root = documents.parse(text, "the manifest")
    return frozenset(node.get("component_id", "") for node in documents.children(root, "node"))


def linked(text: str) -> frozenset[str]:
    """Return the ends of links that a manifest grants, by their names in the request."""
    root = documents.parse(text, "the manifest")
    return frozenset(
        end.get("client_id", "")
        for link in documents.children(root, "link")
        for end in documents.children(link, "interface_ref")
    )


def _node(name: str, element: Any, user: str) -> Granted:
    sliver = element.get("sliver_id", "")
    if not sliver:
        raise Malformed("the manifest gives it no sliver: it belongs to another testbed")
    login = _login(element, user)
    port, control = _port(login.get("port")), _control(element)
    return Granted(
        name=name,
        sliver=sliver,
        host=_checked(_HOST, login.get("hostname"), "host name"),
        port=port,
        user=_checked(_USER, login.get("username"), "user name"),
        ipv4=control if port == _SSH else "",
        machine=element.get("component_id", "").rsplit("+", 1)[-1],
        interfaces=tuple(
            found for i in documents.children(element, "interface") if (found := _interface(i))
        ),
    )


def _login(element: Any, user: str) -> Any:
    logins = [
        login
        for services in documents.children(element, "services")
        for login in documents.children(services, "login")
        if login.get("authentication", "ssh-keys") == "ssh-keys"
    ]
    if not logins:
        raise Malformed("the manifest names no login for it")
    return next((login for login in logins if login.get("username") == user), logins[0])


def _checked(pattern: re.Pattern[str], text: str | None, what: str) -> str:
    if text is None or pattern.fullmatch(text) is None:
        raise Malformed(f"the manifest gives it the {what} {(text or '')[:80]!r}")
    return text


def _port(text: str | None) -> int:
    if text is None:
        return _SSH
    if _PORT.fullmatch(text) is None or not 0 < int(text) < 65536:
        raise Malformed(f"the manifest gives it the port {text[:80]!r}")
    return int(text)


def _control(element: Any) -> str:
    for host in documents.children(element, "host"):
        if text := host.get("ipv4"):
            return _address(text)
    return ""


def _address(text: str) -> str:
    try:
        return str(IPv4Address(text))
    except ValueError:
        raise Malformed(f"the manifest gives it the address {text[:80]!r}") from None


def _interface(element: Any) -> Interface | None:
    for ip in documents.children(element, "ip"):
        if ip.get("type", "ipv4") == "ipv4":
            try:
                address = IPv4Address(ip.get("address", ""))
                prefix = IPv4Network(f"0.0.0.0/{ip.get('netmask', '')}").prefixlen
            except ValueError:
                raise Malformed("the manifest gives it an interface without an address") from None
            mac = element.get("mac_address", "").replace(":", "").lower()
            if mac and _MAC.fullmatch(mac) is None:
                raise Malformed(f"the manifest gives it the MAC address {mac[:80]!r}")
            if not mac and not element.get("sliver_id"):
                return None  # of no link: Emulab leaves it as it was asked for, without hardware
            colons = ":".join(mac[i : i + 2] for i in range(0, len(mac), 2))
            return Interface(colons, str(address), prefix)
    return None
