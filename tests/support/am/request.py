"""Requests: RSpec v3 as Emulab reads it.

Elements of other namespaces are let through, as there; prefixes do not matter, except that services
are known by their plain names.
"""

import re
import shlex
from dataclasses import dataclass, field
from ipaddress import IPv4Interface

from lxml import etree

from . import answers, inventory, names

RSPEC = "http://www.geni.net/resources/rspec/3"
EMULAB = "http://www.protogeni.net/resources/rspec/ext/emulab/1"
_CHARACTERS = re.compile(r"[\x20-\x7e\n\r\t]+")


@dataclass
class Node:
    """A node that this site is asked for; `machine` is named if it must be that one."""

    client_id: str
    type: str
    machine: str | None
    image: str | None
    interfaces: dict[str, IPv4Interface]
    element: etree._Element


@dataclass
class Link:
    """A link or LAN; by interface: rates in bit/s (None: not shaped), seconds, fractions."""

    client_id: str
    members: list[str]
    rates: dict[str, int | None] = field(default_factory=dict)
    latency: dict[str, float] = field(default_factory=dict)
    loss: dict[str, float] = field(default_factory=dict)


@dataclass
class Request:
    """What of a request concerns this site, and the whole document."""

    root: etree._Element
    nodes: dict[str, Node]
    links: dict[str, Link]


def tag(name):
    return f"{{{RSPEC}}}{name}"


def read(text):
    """Reads a request; raises Refusal if it is none."""
    if not _CHARACTERS.fullmatch(text):
        raise answers.malformed("Bad characters in rspec")
    try:
        root = etree.fromstring(text.encode(), etree.XMLParser(resolve_entities=False))
    except etree.XMLSyntaxError:
        raise answers.Refusal(answers.ERROR, "rspec is not well formed") from None
    if root.tag != tag("rspec") or root.get("type") != "request":
        text = "Malformed rspec: not a request of GENI version 3"
        raise answers.Refusal(answers.BADARGS, text)
    nodes = {node.client_id: node for node in map(_node, root.findall(tag("node")))}
    links = {link.client_id: link for link in map(_link, root.findall(tag("link")))}
    known = {name for node in nodes.values() for name in node.interfaces}
    for member in (member for link in links.values() for member in link.members):
        if member not in known:
            text = f"No such interface on component: {member}"
            raise answers.Refusal(answers.BADARGS, text)
    return Request(root, nodes, links)


def script(node):
    """Returns what Emulab makes of a node's `execute` services: a script for boot, or ""."""
    lines = []
    for execute in node.findall(f"{tag('services')}/{tag('execute')}"):
        if not execute.prefix:
            command, place = shlex.quote(execute.get("command")), "/var/tmp/startup"
            shell = execute.get("shell", "sh")
            lines.append(f"{shell} -c {command} > {place}.txt 2>&1; echo $? > {place}.status\n")
    return "".join(lines)


def _node(element):
    kind, hardware = element.find(tag("sliver_type")), element.find(tag("hardware_type"))
    image, component = kind.find(tag("disk_image")), element.get("component_id")
    interfaces = {}
    for interface in element.findall(tag("interface")):
        ip = interface.find(tag("ip"))
        address = IPv4Interface(f"{ip.get('address')}/{ip.get('netmask')}")
        interfaces[interface.get("client_id")] = address
    return Node(
        client_id=element.get("client_id"),
        type=inventory.PC if hardware is None else hardware.get("name"),
        machine=names.parse(component).name if component else None,
        image=None if image is None else image.get("name"),
        interfaces=interfaces,
        element=element,
    )


def _link(element):
    name, members = element.get("client_id"), []
    members = [e.get("client_id") for e in element.findall(tag("interface_ref"))]
    link = Link(name, members, dict.fromkeys(members))
    for found in element.findall(tag("property")):
        source, target = found.get("source_id"), found.get("dest_id")
        # On a LAN only what goes from an interface to the LAN counts.
        if source in members and (len(members) < 3 or target == name):
            link.rates[source] = int(found.get("capacity")) * 1000
            link.latency[source] = float(found.get("latency", 0)) / 1000
            link.loss[source] = float(found.get("packet_loss", 0))
    return link
