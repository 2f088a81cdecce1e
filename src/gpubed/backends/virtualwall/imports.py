"""Reads a GENI request RSpec (version 3), alone or in a jFed experiment specification (ESpec).

Names of elements: GENI RSpec v3 and Emulab's and jFed's extensions, as `rspec` writes them.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from ipaddress import IPv4Interface
from typing import Any

from lxml import etree

from gpubed.backends.virtualwall import config, documents
from gpubed.backends.virtualwall.documents import local
from gpubed.backends.virtualwall.rspec import CORE, EMULAB
from gpubed.core.errors import GpubedError
from gpubed.spec.clusterspec import systems
from gpubed.testbeds.imports import Draft, Source, group_name

FORMATS = "a GENI request RSpec (version 3); a jFed ESpec (its folder, archive or file)"
_ESPECS = ("experiment-specification.yml", "experiment-specification.yaml")
_SLIVERS = {
    "": "raw-pc",
    "raw-pc": "raw-pc",
    "emulab-xen": "emulab-xen",
    "default-vm": "emulab-xen",
}
_WALL = re.compile(r"\+(wall[12])\.ilabt\.(iminds|imec)\.be\+")
_NAMES = {"r": CORE, "e": EMULAB}
# Nodes of a group agree in these.
_KIND = (
    *("r:sliver_type/@name", "r:hardware_type/@name", "r:sliver_type/r:disk_image/@name"),
    *("r:sliver_type/e:xen/@cores", "r:sliver_type/e:xen/@ram"),
)
_END = "r:interface_ref/@client_id"
_MOST_NODES = 1000
# Elements that are read, and `location`, which only places a node on jFed's canvas.
_TAKEN = {"node", "sliver_type", "disk_image", "hardware_type", "xen", "interface", "ip", "link"}
_TAKEN |= {"interface_ref", "component_manager", "property", "link_type", "services", "location"}


def imported(source: Source) -> Draft | None:
    """Return the draft for a request RSpec or an ESpec; None if the file is neither."""
    found = source if source.data else next(filter(None, map(source.beside, _ESPECS)), None)
    if found is None or found.text.lstrip().startswith("<"):
        return _request(found) if found else None
    espec = found.mapping
    if espec is None or "rspec" not in espec.data:
        return None
    name = espec.data["rspec"]
    name = name[0] if isinstance(name, list) and len(name) == 1 else name
    name = name.get("bundled") if isinstance(name, dict) else name
    request = found.beside(name) if isinstance(name, str) else None
    draft = _request(request) if request else None
    if draft is None:
        fix = "give --from a folder or an archive that has both files"
        raise found.refusal(espec.line(("rspec",)), f"there is no RSpec {name!r} beside it", fix)
    draft.omit_rest(espec, {("rspec",), ("version",)}, found)
    return draft


def _request(source: Source) -> Draft | None:
    """Return the draft for an RSpec; None if the XML is another document."""
    try:
        root, draft = documents.parse(source.text, "the file"), Draft(source)
    except GpubedError as error:
        line = re.search(r"line (\d+)", error.message)
        raise source.refusal(int(line[1]) if line else 1, error.message) from None
    if local(root).lower() != "rspec":
        return None
    space, kind = etree.QName(root).namespace or "no version", root.get("type")
    if space != CORE or kind != "request":
        version = "3" if space == CORE else re.sub(r".*/rspec/", "", space)
        why = f"is an RSpec of version {version} and type {kind!r}, not a request of version 3"
        raise source.refusal(root.sourceline, why, "save the request for it as version 3")
    managers = Counter(_all(root, "r:node/@component_manager_id"))
    manager = managers.most_common(1)[0][0] if managers else ""
    nodes = [node for node in _all(root, "r:node") if _is_taken(draft, node, manager)]
    if not 0 < len(nodes) <= _MOST_NODES:
        why = f"asks for {len(nodes)} nodes of sliver type raw-pc or emulab-xen"
        why += "".join(f"; {note}" for note in list(draft.omitted)[:1])
        raise source.refusal(root.sourceline, why, f"ask for 1 to {_MOST_NODES}")
    _testbed(draft, manager)
    _groups(draft, nodes)
    _network(draft, root, nodes)
    for element in root.iterdescendants(etree.Element):
        if local(element) not in _TAKEN:
            ids = (parent.get("client_id") for parent in element.iterancestors())
            owner = next(filter(None, ids), "")
            draft.omit(element.sourceline, f"{local(element)} {owner}")
    return draft


def _testbed(draft: Draft, manager: str) -> None:
    """Name the testbed if it has a preset, else its aggregate manager."""
    wall = _WALL.search(manager)
    presets = {options["aggregate"]["urn"]: name for name, options in config.presets().items()}
    if wall:
        draft.backend = "virtualwall"
    elif manager in presets:
        draft.backend = "geni"
        draft.put("backend", "testbed", value=presets[manager])
        return
    if manager:
        host = f"www.{wall[1]}.ilabt.iminds.be" if wall else "fill-in.example.org"
        url = f"https://{host}:12369/protogeni/xmlrpc/am/3.0"
        draft.put("backend", "aggregate", value={"url": url, "urn": manager})
        if not wall:
            draft.remarks["backend", "aggregate", "url"] = "fill in: the aggregate manager's URL"


def _is_taken(draft: Draft, node: Any, manager: str) -> bool:
    where, sliver = node.get("component_manager_id", manager), _first(node, "r:sliver_type/@name")
    taken = where == manager and sliver in _SLIVERS
    if not taken:
        name = node.get("client_id")
        draft.omit(node.sourceline, f"node {name} of sliver type {sliver} at {where}")
    return taken


def _all(element: Any, path: str) -> list[Any]:
    found: list[Any] = element.xpath(path, namespaces=_NAMES, smart_strings=False)
    return found


def _first(element: Any, path: str) -> str:
    return str(next(iter(_all(element, path)), ""))


def _groups(draft: Draft, nodes: list[Any]) -> None:
    """Make a node group of all nodes that agree in `_KIND`; a remark keeps the nodes' names."""
    alike: dict[tuple[Any, ...], list[Any]] = {}
    for node in nodes:
        prefix = node.get("client_id", "").rstrip("0123456789")
        kind, bound = (_first(node, path) for path in _KIND), "component_id" in node.attrib
        alike.setdefault((prefix, *kind, bound), []).append(node)
    groups, hardware, images = dict[str, Any](), dict[str, Any](), dict[str, str]()
    for (prefix, sliver, kind, image, cores, memory, bound), same in alike.items():
        name, line, at = group_name(prefix, groups), same[0].sourceline, len(groups)
        draft.lines |= {("nodes", at): line, ("backend", "hardware", name): line}
        draft.remarks["nodes", at, "name"] = ", ".join(one.get("client_id", "") for one in same)
        cpus = {"cpus": int(cores) if cores.isdecimal() else cores} if cores else {}
        machine = cpus | ({"memory": f"{memory} MiB"} if memory else {})
        system = group_name(re.split(r"[+:/]", image)[-1]) if image else ""
        if image:
            draft.remarks["nodes", at, "image"] = f"must hold one of: {', '.join(systems())}"
        group = {"name": name, "count": len(same), "machine": machine, "image": system}
        groups[name] = {key: value for key, value in group.items() if value}
        images |= {system: image} if system else {}
        machines = [one.get("component_id") for one in same] if bound else []
        options = {"type": kind, "sliver": _SLIVERS[sliver], "machines": machines}
        options = {key: value for key, value in options.items() if value not in ("", [], "raw-pc")}
        hardware |= {name: options} if options else {}
    draft.put("nodes", value=list(groups.values()), line=nodes[0].sourceline)
    draft.put("backend", "hardware", value=hardware or None)
    draft.put("backend", "images", value=images or None)


def _network(draft: Draft, root: Any, nodes: list[Any]) -> None:
    """Make the link with most nodes the experiment network."""
    ends_of_nodes = (end for node in nodes for end in _all(node, "r:interface"))
    interfaces = {end.get("client_id"): end for end in ends_of_nodes}
    ends = {
        link: [interfaces[end] for end in _all(link, _END) if end in interfaces]
        for link in _all(root, "r:link")
    }
    joined = {link: len({end.getparent() for end in some}) for link, some in ends.items()}
    draft.put("networks", value=None)
    for rank, link in enumerate(sorted(joined, key=lambda link: -joined[link])):
        if rank or joined[link] < 2:
            draft.omit(link.sourceline, f"link {link.get('client_id')}: a cluster has one network")
            continue
        if joined[link] < len(nodes):
            draft.omit(link.sourceline, "that the link leaves nodes out: a network joins all")
        network, subnets = _shape(draft, link, joined[link]), set()
        for ip in (ip for end in ends[link] for ip in _all(end, "r:ip")):
            with suppress(ValueError):
                address = f"{ip.get('address')}/{ip.get('netmask', '255.255.255.0')}"
                subnets.add(str(IPv4Interface(address).network))
        network |= {"subnet": subnets.pop()} if len(subnets) == 1 else {}
        draft.put("networks", value={"experiment": network}, line=link.sourceline)


def _shape(draft: Draft, link: Any, joined: int) -> dict[str, Any]:
    """Return rate, latency and loss from node to node; `rspec` explains the properties."""
    ends, network = 2 if joined > 2 else 1, {}  # a packet crosses two ends of a LAN
    for key in ("capacity", "latency", "packet_loss"):
        values = {link.xpath("number($n)", n=n) for n in _all(link, f"r:property/@{key}")}
        if len(values) > 1:
            draft.omit(link.sourceline, f"{key} of each end: the largest counts")
        network[key] = max(values, default=0)
    if not network["capacity"]:
        draft.remarks["networks", "experiment", "rate"] = "the link names none"
    shape: dict[str, Any] = {"rate": f"{(network['capacity'] or 10**6) / 1000:.10g} Mbit/s"}
    shape |= {"latency": f"{network['latency'] * ends:.6g} ms"} if network["latency"] else {}
    loss = round(1 - (1 - network["packet_loss"]) ** ends, 8)
    return shape | ({"loss": loss} if loss else {})
