"""Reads XML, URNs and times of testbeds.

XML is limited in size, and must not declare entities. Names and addresses are checked, as commands
and files contain them later. An unusable node of a manifest is a reason, not an error: the others
may suffice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import IPv4Network
from typing import Any

from lxml import etree
from pydantic import BaseModel, ConfigDict, TypeAdapter

from gpubed.backends.virtualwall.faults import Malformed
from gpubed.core import reading
from gpubed.core.errors import GpubedError
from gpubed.core.units import Moment

LIMIT = 32 * 2**20  # bytes; the advertisement of a large site has a few million
_PARTS = 2_000_000  # tags and attributes: a parsed one takes a multiple of its text
_MOMENT: TypeAdapter[datetime] = TypeAdapter(Moment)
_URN = re.compile(r"urn:publicid:IDN\+([^\s+]+)\+([a-z]+)\+([^\s]+)")
_SLICE_NAME = 19  # GENI's limit; letters, digits and '-', first a letter
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]{0,252}[A-Za-z0-9])?")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}")
_PORT = re.compile(r"[0-9]{1,5}")
_MAC = re.compile(r"([0-9a-f]{12})?")
_BYTE = "(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])"
_IPV4 = re.compile(rf"{_BYTE}(\.{_BYTE}){{3}}")
_SSH = 22


def bounded(data: bytes | str, what: str) -> str:
    """Return XML as text; raise Malformed if it is not UTF-8, too large, or declares entities."""
    text = reading.reply(data, what, limit=LIMIT, error=Malformed).text()
    if text.count("<") + text.count("=") > _PARTS:
        raise Malformed(f"{what} cannot be read: more than {_PARTS} elements and attributes")
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise Malformed(f"{what} declares a document type or entities, which gpubed does not read")
    return text


def parse(text: str, what: str) -> Any:
    """Return a document's root element (lxml); raise Malformed as `bounded` does."""
    parser = etree.XMLParser(
        encoding="utf-8",  # overrides the document's declaration
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        remove_comments=True,
        remove_pis=True,
    )
    try:
        return etree.fromstring(bounded(text, what).encode(), parser)
    except etree.XMLSyntaxError as error:
        raise Malformed(f"{what} is not XML: {str(error.msg)[:200]}") from None


def rspec(text: str, kind: str) -> Any:
    """Return the root element of an RSpec of a kind; raise Malformed if it is another document."""
    root = parse(text, f"the {kind}")
    if local(root) != "rspec" or root.get("type") != kind:
        raise Malformed(f"the testbed answered with something else than the {kind}")
    return root


def inflate(text: str, what: str) -> str:
    """Unpack what an aggregate compressed (base64 of zlib); raise Malformed if that fails."""
    # Servers break base64 into lines.
    packed = reading.reply("".join(text.split()), what, limit=LIMIT, error=Malformed)
    return packed.base64().inflated().text()


def children(element: Any, *names: str) -> list[Any]:
    """Return the elements at the end of a path of names, whatever their namespace."""
    found = [element]
    for name in names:
        found = [child for parent in found for child in parent if local(child) == name]
    return found


def local(element: Any) -> str:
    """Return an element's name without its namespace."""
    return str(etree.QName(element).localname) if isinstance(element.tag, str) else ""


@dataclass(frozen=True)
class Urn:
    """A GENI URN; `authority` may have sub-authorities, as in `geni:gpo:gcf`."""

    authority: str
    type: str
    name: str

    def __str__(self) -> str:
        return f"urn:publicid:IDN+{self.authority}+{self.type}+{self.name}"


def urn(text: str, type_: str) -> Urn:
    """Read a URN; raise GpubedError if it is malformed or of another type."""
    match = _URN.fullmatch(text)
    if match is None or type_ != match[2]:
        raise GpubedError(f"{text[:200]!r} is not the URN of a {type_}")
    return Urn(*match.groups())


def slice_name(cluster: str, uuid: str) -> str:
    """Return the name of a cluster's slice, which is unique in all projects."""
    tail = f"-{uuid[:8]}"
    return cluster[: _SLICE_NAME - len(tail)].rstrip("-") + tail


def time(value: Any) -> datetime:
    """Parse an RFC 3339 time or an XML-RPC date; UTC if it has no offset."""
    try:
        found = datetime.fromisoformat(str(value).strip())
        aware = found if found.tzinfo else found.replace(tzinfo=UTC)
        return _MOMENT.validate_python(aware).astimezone(UTC)
    except ValueError:
        raise Malformed(f"{str(value)[:80]!r} is not a point in time") from None


def timestamp(time: datetime) -> str:
    """Format a time for aggregates: UTC, whole seconds, `Z`."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class Interface:
    """A node's end of a link; `mac` has colons, and may be empty."""

    mac: str
    address: str
    prefix: int


class Given(BaseModel):
    """A node of a manifest, or the reason why it failed."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    sliver: str = ""
    linked: bool = False  # whether a network was requested
    failed: str | None = None
    host: str = ""  # the name or address where SSH answers
    port: int = 22
    user: str = ""
    # On the testbed's control network; empty if the login uses a forwarded port of the host.
    ipv4: str = ""
    machine: str = ""
    # Only those in links: Emulab gives others no hardware.
    interfaces: tuple[Interface, ...] = ()


def manifest(text: str, names: Iterable[str], user: str) -> tuple[dict[str, Given], dict[str, str]]:
    """Return the usable nodes of a manifest, and the reasons why others of `names` are not.

    `user` is the preferred login.
    """
    root = rspec(text, "manifest")
    found: dict[str, Any] = {}
    for element in children(root, "node"):
        name = element.get("client_id", "")
        if name in found:
            raise Malformed(f"the manifest lists node {name!r:.80} twice")
        found[name] = element
    ends = {end.get("client_id") for end in children(root, "link", "interface_ref")}
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
    nodes = children(rspec(text, "manifest"), "node")
    return frozenset(node.get("component_id", "") for node in nodes)


def _node(element: Any, user: str, ends: set[str | None]) -> Given:
    sliver = element.get("sliver_id", "")
    if not sliver:
        raise Malformed("the manifest gives it no sliver: it belongs to another testbed")
    named = children(element, "services", "login")
    logins = [item for item in named if item.get("authentication", "ssh-keys") == "ssh-keys"]
    if not logins:
        raise Malformed("the manifest names no login for it")
    login = next((login for login in logins if login.get("username") == user), logins[0])
    port = int(_checked(_PORT, login.get("port", str(_SSH)), "port"))
    if not 0 < port < 65536:
        raise Malformed(f"the manifest gives it the port {port}")
    hosts = [text for h in children(element, "host") if (text := h.get("ipv4"))]
    control = _checked(_IPV4, hosts[0], "address") if hosts else ""
    linked = [i for i in children(element, "interface") if i.get("client_id") in ends]
    return Given(
        sliver=sliver,
        host=_checked(_HOST, login.get("hostname"), "host name"),
        port=port,
        user=_checked(_USER, login.get("username"), "user name"),
        ipv4=control if port == _SSH else "",
        machine=element.get("component_id", "").rsplit("+", 1)[-1],
        interfaces=tuple(found for i in linked if (found := _interface(i))),
    )


def _checked(pattern: re.Pattern[str], text: str | None, what: str) -> str:
    if text is None or pattern.fullmatch(text) is None:
        raise Malformed(f"the manifest gives it the {what} {(text or '')[:80]!r}")
    return text


def _interface(element: Any) -> Interface | None:
    for ip in children(element, "ip"):
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
