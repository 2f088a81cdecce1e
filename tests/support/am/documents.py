"""Documents that the server writes: advertisement and manifest."""

import copy

from lxml import etree

from . import inventory, names
from .request import EMULAB, RSPEC, tag

# Emulab's code never closes this element; a client that parses before it looks at
# geni_slivers finds out.
EMPTY_MANIFEST = f'<rspec xmlns="{RSPEC}" type="manifest">'
_FILLER = (
    '<node component_id="urn:publicid:IDN+wall2.ilabt.example+node+n999-01" exclusive="true">'
    '<hardware_type name="filler"/><available now="false"/></node>'
)


def advertisement(site, machines, padding=0):
    """Returns what the site offers, blown up by `padding` bytes of nodes that are taken."""
    root = etree.Element(tag("rspec"), nsmap={None: RSPEC, "emulab": EMULAB})
    root.set("type", "advertisement")
    for machine in machines:
        node = _add(
            root,
            "node",
            component_id=names.make(site.authority, "node", machine.name),
            component_name=machine.name,
            component_manager_id=site.manager,
        )
        kind = _add(node, "sliver_type", name="fake-vm" if site.is_gcf else "raw-pc")
        if not site.is_gcf:
            for number, image in enumerate(site.image_urns):
                _add(kind, "disk_image", name=image, default=str(number == 0).lower())
            for name in (machine.type, inventory.PC):
                _add(node, "hardware_type", name=name)
        _add(node, "available", now=str(machine.is_free).lower())
    # Of nodes and not of one long text, which libxml2 refuses by itself.
    return _text(root).replace("</rspec>", f"{_FILLER * (padding // len(_FILLER))}</rspec>")


def manifest(site, slice_, hidden=()):
    """Returns a slice's request with what became of it, but for nodes that are `hidden`."""
    held = slice_.ticket or slice_
    root = copy.deepcopy(held.request.root)
    root.set("type", "manifest")
    linked = {member for link in held.request.links.values() for member in link.members}
    for node in root.findall(tag("node")):
        if node.get("client_id") in hidden:
            root.remove(node)
        else:
            users = () if slice_.ticket else slice_.users
            _describe(site, node, held.slivers[node.get("client_id")], users, linked)
    for link in root.findall(tag("link")):
        if site.is_gcf:
            root.remove(link)
        else:
            link.set("sliver_id", slice_.links[link.get("client_id")])
    return _text(root)


def _describe(site, node, sliver, users, linked):
    node.set("component_id", names.make(site.authority, "node", sliver.machine.name))
    node.set("sliver_id", sliver.urn)
    for interface in node.findall(tag("interface")):
        name = interface.get("client_id")
        if site.is_gcf:
            node.remove(interface)
        elif name in linked:  # Emulab gives hardware to what is in a link only
            interface.set("mac_address", sliver.macs[name].replace(":", ""))
    if sliver.reach:
        services = node.find(tag("services"))
        services = _add(node, "services") if services is None else services
        where = {"hostname": sliver.reach.host, "port": str(sliver.reach.port)}
        for user in users:
            _add(services, "login", authentication="ssh-keys", username=user, **where)
        host = _add(node, "host", name=sliver.reach.host)
        if sliver.reach.control_address:
            host.set("ipv4", sliver.reach.control_address)


def _add(parent, element, **attributes):
    return etree.SubElement(parent, tag(element), **attributes)


def _text(root):
    return etree.tostring(root, xml_declaration=True, encoding="UTF-8").decode()
