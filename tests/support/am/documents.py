"""Documents that the server writes: advertisement and manifest."""

import copy

from lxml import etree

from . import clock, urn
from .request import EMULAB, RSPEC, tag

_XSI = "http://www.w3.org/2001/XMLSchema-instance"
_SCHEMA = f"{{{_XSI}}}schemaLocation"
_NAMES = {None: RSPEC, "emulab": EMULAB, "xsi": _XSI}
# Emulab's code never closes this element; a client that parses before it looks at
# geni_slivers finds out.
EMPTY_MANIFEST = (
    f'<rspec xmlns="{RSPEC}" xmlns:xsi="{_XSI}" type="manifest" '
    f'xsi:schemaLocation="{RSPEC} {RSPEC}/manifest.xsd ">'
)
_FILLER = (
    '<node component_id="urn:publicid:IDN+wall2.ilabt.example+node+n999-01" exclusive="true">'
    '<hardware_type name="filler"/><available now="false"/></node>'
)


def advertisement(site, machines, images, only_free=False, padding=0):
    """Returns what the site offers.

    Args:
        site: Names.
        machines: All of them.
        images: URNs of disk images.
        only_free: Leave out what somebody has.
        padding: Bytes of nodes to blow it up with, which nobody can have.
    """
    root = _root("advertisement", "ad.xsd")
    for machine in machines:
        if not only_free or machine.is_free:
            root.append(_offer(site, machine, images))
    # Of nodes and not of one long text, which libxml2 refuses by itself.
    return _text(root).replace("</rspec>", f"{_FILLER * (padding // len(_FILLER))}</rspec>")


def _root(kind, schema):
    root = etree.Element(tag("rspec"), nsmap=_NAMES)
    root.set("type", kind)
    root.set(_SCHEMA, f"{RSPEC} {RSPEC}/{schema}")
    return root


def _offer(site, machine, images):
    node = etree.Element(
        tag("node"),
        component_id=urn.make(site.authority, "node", machine.name),
        component_name=machine.name,
        component_manager_id=site.manager,
        exclusive=_bool(not (machine.type.virtual or site.is_gcf)),
    )
    if site.is_gcf:
        _add(node, "sliver_type", name="fake-vm")
        _add(node, "available", now=_bool(machine.is_free))
        return node
    kind = _add(node, "sliver_type", name="emulab-xen" if machine.type.virtual else "raw-pc")
    for number, image in enumerate(images):
        attributes = {"name": image, "os": "Linux", "default": _bool(number == 0)}
        _add(kind, "disk_image", **attributes)
    for name in machine.type_names:
        etree.SubElement(
            _add(node, "hardware_type", name=name), f"{{{EMULAB}}}node_type", type_slots="1"
        )
    _add(node, "available", now=_bool(machine.is_free))
    return node


def manifest(site, request, slivers, expires, links, users=(), hidden=()):
    """Returns a request with what became of it.

    Args:
        site: Names.
        request: The request that the slivers were made of.
        slivers: By client_id.
        expires: When the slice ends.
        links: URN of each link.
        users: Login names; none before Provision.
        hidden: client_ids of nodes that the manifest lacks.
    """
    root = copy.deepcopy(request.root)
    root.set("type", "manifest")
    root.set("expires", clock.stamp(expires))
    schema = root.get(_SCHEMA, f"{RSPEC} {RSPEC}/request.xsd")
    root.set(_SCHEMA, schema.replace("/request.xsd", "/manifest.xsd"))
    linked = {member for link in request.links.values() for member in link.members}
    for node in root.findall(tag("node")):
        if node.get("client_id") in hidden:
            root.remove(node)
        elif node.get("client_id") in slivers:
            _describe(site, node, slivers[node.get("client_id")], users, linked)
    places = {
        place.request.client_id: (sliver, place)
        for sliver in slivers.values()
        for place in sliver.places
    }
    for link in root.findall(tag("link")):
        if site.is_gcf:
            root.remove(link)
        elif link.get("client_id") in request.links:
            link.set("sliver_id", links[link.get("client_id")])
            _describe_link(site, link, places)
    return _text(root)


def _describe(site, node, sliver, users, linked):
    node.set("component_manager_id", site.manager)
    node.set("component_id", urn.make(site.authority, "node", sliver.machine.name))
    node.set("sliver_id", sliver.urn)
    if site.is_gcf:
        for interface in node.findall(tag("interface")):
            node.remove(interface)
    elif node.find(tag("hardware_type")) is None:
        _add(node, "hardware_type", name=sliver.machine.type.name)
    if sliver.is_provisioned:
        _reach(node, sliver, users)
    etree.SubElement(node, f"{{{EMULAB}}}vnode", name=sliver.machine.name, nsmap={"emulab": EMULAB})
    for interface in node.findall(tag("interface")):
        if interface.get("client_id") not in linked:
            continue  # Emulab gives hardware to what is in a link only
        place = next(p for p in sliver.places if p.request.client_id == interface.get("client_id"))
        interface.set("component_id", _interface_urn(site, sliver, place))
        interface.set("sliver_id", place.urn)
        interface.set("mac_address", place.mac.replace(":", ""))
        for ip in interface.findall(tag("ip")):
            interface.remove(ip)
        if place.address:
            address, mask = str(place.address.ip), str(place.address.netmask)
            _add(interface, "ip", address=address, netmask=mask, type="ipv4")


def _reach(node, sliver, users):
    services = node.find(tag("services"))
    services = _add(node, "services") if services is None else services
    for user in users:
        _add(
            services,
            "login",
            authentication="ssh-keys",
            hostname=sliver.reach.host,
            port=str(sliver.reach.port),
            username=user,
        )
    host = _add(node, "host", name=sliver.host_name)
    if sliver.reach.control_address:
        host.set("ipv4", sliver.reach.control_address)


def _describe_link(site, link, places):
    link.set("vlantag", "312")
    for reference in link.findall(tag("interface_ref")):
        if reference.get("client_id") in places:
            sliver, place = places[reference.get("client_id")]
            reference.set("component_id", _interface_urn(site, sliver, place))
            reference.set("sliver_id", place.urn)


def _interface_urn(site, sliver, place):
    return urn.make(site.authority, "interface", f"{sliver.machine.name}:{place.device}")


def _add(parent, element, **attributes):
    return etree.SubElement(parent, tag(element), **attributes)


def _bool(value):
    return "true" if value else "false"


def _text(root):
    return etree.tostring(root, xml_declaration=True, encoding="UTF-8").decode()
