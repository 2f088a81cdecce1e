"""Requests: RSpec v3 as Emulab reads it, with Emulab's complaints.

Elements of other namespaces are let through, as there; prefixes do not matter, except
that services are known by their plain names (A9.1 of the facts).
"""

import copy
import re
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from ipaddress import IPv4Interface
from pathlib import Path

from lxml import etree

from . import answers, clock, inventory, urn, xml

RSPEC = "http://www.geni.net/resources/rspec/3"
EMULAB = "http://www.protogeni.net/resources/rspec/ext/emulab/1"
_TYPES = ("raw-pc", "default-vm", "emulab-xen", "emulab-openvz", "docker-container")
_CHARACTERS = re.compile(r"[\x20-\x7e\n\r\t]+")
_SHELLS = ("sh", "csh", "/bin/sh", "/bin/csh")
_IMAGE = re.compile(r"urn:publicid:IDN\+[^+]+\+image\+[^+]+?(:|//)[^+:]+(:\d+)?")
_VM_LINK_BPS = 100_000_000


@dataclass
class Interface:
    """An interface; the address is of the form 192.168.0.1/24."""

    client_id: str
    address: IPv4Interface | None
    element: etree._Element


@dataclass
class Node:
    """A node that this site is asked for.

    Attributes:
        type: Hardware type wanted.
        machine: Name of the machine wanted, if it must be that one.
        image: URN or URL of the disk image, if any.
        virtual: Whether it is a virtual machine.
        nonfatal: Whether the others go on without it.
    """

    client_id: str
    type: str
    machine: str | None
    image: str | None
    virtual: bool
    public_ip: bool
    nonfatal: bool
    interfaces: list[Interface]
    element: etree._Element


@dataclass
class Link:
    """A link or LAN; rates by interface in bit/s (None: not shaped), seconds, fractions."""

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
    expires: datetime | None = None
    """When the slice shall end here, if the request says so."""

    def joined(self, other):
        """Returns this and another request as one; raises Refusal unless they are disjoint."""
        if self.ids() & other.ids():
            raise answers.Refusal(answers.ERROR, "New rspec is not disjoint from sliver")
        root = copy.deepcopy(self.root)
        root.extend(copy.deepcopy(list(other.root)))
        nodes, links = {**self.nodes, **other.nodes}, {**self.links, **other.links}
        return Request(root, nodes, links, other.expires or self.expires)

    def ids(self):
        """Returns the names of all nodes, interfaces and links."""
        interfaces = {i.client_id for node in self.nodes.values() for i in node.interfaces}
        return {*self.nodes, *self.links, *interfaces}


def tag(name):
    """Returns a name in RSpec's namespace, as lxml writes it."""
    return f"{{{RSPEC}}}{name}"


def read(text, manager):
    """Reads a request.

    Args:
        text: The document.
        manager: URN of this site's component manager.

    Raises:
        Refusal: It is not one, or cannot be met here.
    """
    root = _root(text)
    nodes = {}
    for element in root.findall(tag("node")):
        node = _node(element)
        if node.client_id.lower() in {name.lower() for name in nodes}:
            raise _bad(f"Duplicate node {node.client_id}")
        if element.get("component_manager_id", manager) == manager:
            nodes[node.client_id] = node
    everywhere = {e.get("client_id") for e in root.iterfind(f"{tag('node')}/{tag('interface')}")}
    links = {}
    for element in root.findall(tag("link")):
        link = _link(element, nodes, everywhere)
        if link.client_id in links:
            raise _bad(f"Duplicate link {link.client_id}")
        managers = [e.get("name") for e in element.findall(tag("component_manager"))]
        if not managers or manager in managers:
            links[link.client_id] = link
    # Last, since Emulab's own complaints come first, and it does not look that closely.
    if not _grammar().validate(root):
        raise _bad(f"Malformed rspec: {_grammar().error_log[0].message}")
    return Request(root, nodes, links, _expires(root))


def _root(text):
    if not isinstance(text, str):
        raise answers.malformed("rspec is not a string")
    if not _CHARACTERS.fullmatch(text):
        raise answers.malformed("Bad characters in rspec")
    try:
        root = xml.parse(text)
    except xml.Unparsable:
        raise answers.Refusal(answers.ERROR, "rspec is not well formed") from None
    if root.tag != tag("rspec") or root.get("type") != "request":
        raise _bad("Malformed rspec: not a request of GENI version 3")
    return root


@cache
def _grammar():
    return etree.RelaxNG(etree.parse(Path(__file__).with_name("request.rng")))


def _expires(root):
    text = root.get("expires")
    try:
        return clock.parse(text) if text else None
    except ValueError:
        raise answers.Refusal(answers.ERROR, f"{text}: Invalid Datetime Format") from None


def _node(element):
    name = element.get("client_id")
    if not name:
        raise _bad("Must provide a virtual_id for nodes")
    kind = element.find(tag("sliver_type"))
    sliver_type = kind.get("name") if kind is not None else "raw-pc"
    if sliver_type not in _TYPES:
        raise _bad("Malformed rspec: Unknown virtualization_subtype")
    virtual = sliver_type != "raw-pc"
    hardware = element.find(tag("hardware_type"))
    default = inventory.VM if virtual else inventory.PC
    _services(element)
    return Node(
        client_id=name,
        type=hardware.get("name", default) if hardware is not None and not virtual else default,
        machine=_machine(element.get("component_id")),
        image=_image(kind),
        virtual=virtual,
        public_ip=element.find(f"{{{EMULAB}}}routable_control_ip") is not None,
        nonfatal=any(
            e.get("action") == "nonfatal" for e in element.findall(f"{{{EMULAB}}}failure_action")
        ),
        interfaces=_interfaces(element),
        element=element,
    )


def _machine(component):
    if component is None:
        return None
    try:
        return urn.parse(component).name
    except ValueError:
        raise _bad(f"Bad resource {component}") from None


def _image(kind):
    image = kind.find(tag("disk_image")) if kind is not None else None
    name = image.get("name") if image is not None else None
    if name is None or name.startswith(("http://", "https://")):
        return name
    if not _IMAGE.fullmatch(name):
        raise _bad(f"Malformed image URN: {name}")
    return name


def _services(element):
    executes = element.findall(f"{tag('services')}/{tag('execute')}")
    for execute in executes:
        if execute.prefix:
            continue  # not seen there
        if not execute.get("command"):
            raise _bad("Invalid service command: no command provided")
        if len(executes) > 1 and execute.get("shell") not in _SHELLS:
            raise _bad("Invalid shell in execute")


def _interfaces(element):
    found = []
    for interface in element.findall(tag("interface")):
        name = interface.get("client_id")
        if not name or name in {known.client_id for known in found}:
            raise _bad(f"Duplicate or missing interface {name}")
        found.append(Interface(name, _address(interface.find(tag("ip"))), interface))
    return found


def _address(ip):
    if ip is None or not ip.get("address"):
        return None
    try:
        return IPv4Interface(f"{ip.get('address')}/{ip.get('netmask', '255.255.255.0')}")
    except ValueError:
        raise _bad(f"Bad address {ip.get('address')}") from None


def _link(element, nodes, interfaces):
    name = element.get("client_id")
    if not name:
        raise _bad("Must provide a virtual_id for links")
    members = [e.get("client_id") for e in element.findall(tag("interface_ref"))]
    for member in members:
        if member not in interfaces:
            raise _bad(f"No such interface on component: {member}")
    link = Link(name, members)
    properties = element.findall(tag("property"))
    owners = {i.client_id: node for node in nodes.values() for i in node.interfaces}
    # A virtual machine slows its link down to 100 Mbit/s unless something else is said.
    has_vm = any(owners[member].virtual for member in members if member in owners)
    default = _number(properties[0], "capacity") if properties else None
    default = default * 1000 if default else (_VM_LINK_BPS if has_vm else None)
    link.rates = dict.fromkeys(members, default)
    for found in properties:
        source, target = found.get("source_id"), found.get("dest_id")
        # On a LAN only what goes from an interface to the LAN counts.
        if source not in members or (len(members) > 2 and target != name):
            continue
        if (capacity := _number(found, "capacity")) is not None:
            link.rates[source] = capacity * 1000 or None
        link.latency[source] = (_number(found, "latency", float) or 0) / 1000
        link.loss[source] = _number(found, "packet_loss", float) or 0
    return link


def _number(element, name, kind=int):
    text = element.get(name)
    try:
        return None if text is None else kind(text)
    except ValueError:
        raise _bad(f"Bad {name} in property: {text}") from None


def _bad(text):
    return answers.Refusal(answers.BADARGS, text)
