"""The request as GENI RSpec v3, a pure function of the plan.

Core elements carry no prefix: Emulab recognises some of them by their written name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from copy import deepcopy
from textwrap import indent
from typing import Any

from lxml import etree

from gpubed.backends.virtualwall import documents, prepare
from gpubed.backends.virtualwall.config import Config
from gpubed.spec.plan import ClusterPlan, NodePlan

CORE = "http://www.geni.net/resources/rspec/3"
EMULAB = "http://www.protogeni.net/resources/rspec/ext/emulab/1"
JFED = "http://jfed.iminds.be/rspec/ext/jfed/1"
LAN = "experiment"
_SCHEMA_LOCATION = "{http://www.w3.org/2001/XMLSchema-instance}schemaLocation"


def request(plan: ClusterPlan) -> str:
    """Return the request for a plan, as kept in the state.

    Before sending, `without` must remove interfaces that are in no link, such as a single node's.
    They stay in this text because another text would replace running clusters.
    """
    config = Config.of(plan.spec.backend)
    root = etree.Element(
        f"{{{CORE}}}rspec",
        {"type": "request", "generated_by": "gpubed"},
        nsmap={None: CORE, "emulab": EMULAB, "jfed": JFED},
    )
    root.set(_SCHEMA_LOCATION, f"{CORE} {CORE}/request.xsd")
    for node in plan.nodes:
        root.append(_node(plan, config, node))
    if plan.experiment and len(plan.nodes) > 1:
        root.append(_lan(plan, config))
    public = sum(_is_public(config, n) and not _is_virtual(config, n) for n in plan.nodes)
    if public:
        manager, count = config.aggregate.urn, str(public)
        names = {"client_id": "public", "component_manager_id": manager}
        root.append(_emulab("routable_pool", **names, count=count, type="any"))
    return _text(root)


def with_command(text: str, command: str) -> str:
    """Return a request whose nodes each run a command when they boot."""
    root = documents.parse(text, "the request")
    for node in documents.children(root, "node"):
        services = etree.Element(f"{{{CORE}}}services")
        execute = etree.SubElement(services, f"{{{CORE}}}execute")
        execute.set("shell", "sh")
        execute.set("command", command)
        after = documents.children(node, "hardware_type") or documents.children(node, "sliver_type")
        after[-1].addnext(services)
    return _text(root)


def without(text: str, names: Iterable[str]) -> str:
    """Return a request without some nodes, their interfaces in links, and interfaces in no link.

    Emulab gives an interface in no link neither hardware nor an address.
    """
    root, gone = documents.parse(text, "the request"), set(names)
    gone |= {f"{name}:{LAN}" for name in gone}
    for element in list(root.iter(f"{{{CORE}}}*")):
        if gone & {element.get(key) for key in ("client_id", "source_id", "dest_id")}:
            element.getparent().remove(element)
    for link in documents.children(root, "link"):
        left = _ends(link)
        if len(left) < 2:
            root.remove(link)
        elif len(left) == 2:
            _shape_both_ways(link, left)
    held = [end for link in documents.children(root, "link") for end in _ends(link)]
    for interface in documents.children(root, "node", "interface"):
        if interface.get("client_id") not in held:
            interface.getparent().remove(interface)
    return _text(root)


def added(old: str, new: str) -> frozenset[str]:
    """Return the nodes that a request adds to an older one; none if the rest differs.

    A first link of an older node is a difference.
    """
    before, after = (
        documents.children(documents.parse(t, "the request"), "node") for t in (old, new)
    )
    more = {str(node.get("client_id")) for node in after}
    more -= {str(node.get("client_id")) for node in before}
    is_same = without(old, ()) == without(new, more) and linked(old) == linked(new) - more
    return frozenset(more) if is_same else frozenset()


def linked(text: str) -> frozenset[str]:
    """Return the nodes that have a link in a request."""
    links = documents.children(documents.parse(text, "the request"), "link")
    return frozenset(end.rpartition(":")[0] for link in links for end in _ends(link))


def specification(plan: ClusterPlan) -> str:
    """Return the same cluster as a jFed experiment specification (ESpec).

    jFed needs the request as `cluster.rspec` beside it. Every node runs the preparation, and jFed
    writes an inventory with the request's groups.
    """
    # The image sets addresses: the machines are not known yet.
    nat = "NAT='yes'" if Config.of(plan.spec.backend).nat else "NAT=''"
    script = indent(prepare.script().replace("NAT=''", nat, 1), " " * 4)
    return f"""# {plan.cluster}: {len(plan.nodes)} nodes. Written by `gpubed export`.
version: 1.0-basic
rspec: cluster.rspec
execute:
- direct: |
{script}  sudo: true
output:
- type: SSH_INFO_CSV
  destination: ssh_info.csv
"""


def _ends(link: Any) -> list[str]:
    return [str(end.get("client_id")) for end in documents.children(link, "interface_ref")]


def _shape_both_ways(link: Any, ends: list[str]) -> None:
    for shape in documents.children(link, "property"):
        if shape.get("dest_id") in ends:
            continue
        shape.set("dest_id", next(end for end in ends if end != shape.get("source_id")))
        if latency_ms := shape.get("latency"):
            shape.set("latency", _latency(float(latency_ms) * 2))
        if loss := shape.get("packet_loss"):
            shape.set("packet_loss", _loss(1 - (1 - float(loss)) ** 2))


def _node(plan: ClusterPlan, config: Config, node: NodePlan) -> Any:
    wanted = config.hardware.get(node.group)
    is_virtual = _is_virtual(config, node)
    element = _core(
        "node",
        client_id=node.name,
        exclusive="false" if is_virtual else "true",
        component_manager_id=config.aggregate.urn,
    )
    if wanted and wanted.machines:
        element.set("component_id", wanted.machines[node.index])
    kind = etree.SubElement(element, f"{{{CORE}}}sliver_type")
    kind.set("name", "emulab-xen" if is_virtual else "raw-pc")
    if is_virtual:
        # Emulab takes whole numbers only: cores, MiB of memory.
        cores, ram = node.machine.cpus, (node.machine.memory or 0) / 2**20
        sizes = {"cores": cores, "ram": ram}
        kind.append(
            _emulab("xen", **{k: str(math.ceil(size)) for k, size in sizes.items() if size})
        )
    if image := config.images.get(node.image):
        kind.append(_core("disk_image", name=image))
    if wanted and wanted.type:
        element.append(_core("hardware_type", name=wanted.type))
    if plan.experiment:
        interface = _core("interface", client_id=f"{node.name}:{LAN}")
        address, mask = str(node.experiment_address), str(plan.experiment.subnet.netmask)
        interface.append(_core("ip", address=address, netmask=mask, type="ipv4"))
        element.append(interface)
    if is_virtual and _is_public(config, node):
        element.append(_emulab("routable_control_ip"))
    if node.on_failure:
        # Otherwise the slice is never ready if one node does not boot.
        element.append(_emulab("failure_action", action="nonfatal"))
    for group in (f"group_{node.group.replace('-', '_')}", node.role.replace("worker", "workers")):
        element.append(etree.Element(f"{{{JFED}}}ansible_group", name=group))
    return element


def _lan(plan: ClusterPlan, config: Config) -> Any:
    """Return the link of all nodes, with the shaping of each end.

    On a LAN, a property applies between an end and the LAN. A packet crosses two ends, so each gets
    half of the latency, and the loss that applied twice gives the declared one.
    """
    link = _core("link", client_id=LAN)
    link.append(_core("component_manager", name=config.aggregate.urn))
    ends = [f"{node.name}:{LAN}" for node in plan.nodes]
    link.extend(_core("interface_ref", client_id=end) for end in ends)
    wanted, is_lan = plan.spec.networks.experiment, len(ends) > 2
    assert wanted  # noqa: S101
    shape = {"capacity": str(wanted.rate_bps // 1000)}
    if wanted.latency:
        shape["latency"] = _latency(wanted.latency * 1000 / (2 if is_lan else 1))
    if wanted.loss:
        shape["packet_loss"] = _loss(1 - math.sqrt(1 - wanted.loss) if is_lan else wanted.loss)
    ways = [(end, LAN) for end in ends] if is_lan else [tuple(ends), tuple(reversed(ends))]
    link.extend(_core("property", source_id=one, dest_id=to, **shape) for one, to in ways)
    link.append(_core("link_type", name="lan"))
    return link


def _latency(milliseconds: float) -> str:
    return f"{milliseconds:.3f}".rstrip("0").rstrip(".")


def _loss(fraction: float) -> str:
    return f"{fraction:.6f}".rstrip("0")


def _is_virtual(config: Config, node: NodePlan) -> bool:
    wanted = config.hardware.get(node.group)
    return wanted is not None and wanted.sliver == "emulab-xen"


def _is_public(config: Config, node: NodePlan) -> bool:
    return config.public_address in ("all", "head" if node.role == "head" else "all")


def _core(name: str, /, **attributes: str) -> Any:
    return etree.Element(f"{{{CORE}}}{name}", attributes, nsmap={None: CORE})


def _emulab(name: str, /, **attributes: str) -> Any:
    return etree.Element(f"{{{EMULAB}}}{name}", attributes, nsmap={"emulab": EMULAB})


def _text(root: Any) -> str:
    root = deepcopy(root)
    etree.cleanup_namespaces(root, keep_ns_prefixes=["emulab", "jfed"])
    etree.indent(root)
    text: bytes = etree.tostring(root, xml_declaration=True, encoding="UTF-8")
    return text.decode() + "\n"
