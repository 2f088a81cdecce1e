"""Takes in a GENI request RSpec (version 3), alone or in a jFed experiment specification (ESpec).

Names of elements: GENI RSpec v3 and Emulab's and jFed's extensions, as `rspec` writes them.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from ipaddress import IPv4Interface
from typing import Any

from lxml import etree

from gpubed.backends.virtualwall import documents
from gpubed.backends.virtualwall.documents import children, local
from gpubed.backends.virtualwall.rspec import CORE
from gpubed.spec.clusterspec import systems
from gpubed.testbeds.imports import Draft, Source, group_name

FORMATS = "a GENI request RSpec (version 3); a jFed ESpec (its folder, archive or file)"
_ESPECS = ("experiment-specification.yml", "experiment-specification.yaml")
_SLIVERS = {"raw-pc": "raw-pc", "emulab-xen": "emulab-xen", "default-vm": "emulab-xen"}
_WALL = re.compile(r"\+(wall[12])\.ilabt\.(iminds|imec)\.be\+")
_SYSTEM = re.compile(r"(UBUNTU|DEB)(?:IAN)?-?(\d\d)(?:-(04|10))?(?!\d)")
# Elements that are carried over, or that only place a node on jFed's canvas.
_TAKEN = {"node", "sliver_type", "disk_image", "hardware_type", "xen", "interface", "ip", "link"}
_TAKEN |= {"interface_ref", "component_manager", "property", "link_type", "services", "location"}


def imported(source: Source) -> Draft | None:
    """Return the cluster of a request RSpec or an ESpec; None if the file is neither."""
    found = source if source.data else next(filter(None, map(source.beside, _ESPECS)), None)
    if found is None or found.text.lstrip().startswith("<"):
        return _request(found) if found else None
    espec = found.mapping
    if espec is None or "rspec" not in espec.data:
        return None
    name = espec.data["rspec"]
    name = name.get("bundled") if isinstance(name, dict) else name
    request = found.beside(name) if isinstance(name, str) else None
    draft = _request(request) if request else None
    if draft is None:
        fix = "give --from a folder or an archive that has both files"
        raise found.refusal(espec.line(("rspec",)), f"there is no RSpec {name!r} beside it", fix)
    draft.leave_rest(espec, {("rspec",), ("version",)}, found)
    return draft


def _request(source: Source) -> Draft | None:
    """Return the cluster of an RSpec; None if the XML is another document."""
    root, draft = documents.parse(source.text, source.what), Draft(source)
    if local(root).lower() != "rspec":
        return None
    if (space := etree.QName(root).namespace) != CORE:
        said = re.sub(r".*/rspec/(ext/)?", "version ", space or "no version")
        raise source.refusal(root.sourceline, f"is an RSpec of {said}", "save it as version 3")
    if root.get("type") != "request":
        why = f"is an RSpec of type {root.get('type')!r}, which testbeds write"
        raise source.refusal(root.sourceline, why, "take the request that was sent")
    named = Counter(one.get("component_manager_id") for one in children(root, "node"))
    manager = max(filter(None, named), key=named.__getitem__, default=None)
    nodes = []
    for node in children(root, "node"):
        where, sliver = node.get("component_manager_id", manager), _said(node, "sliver_type")
        if where == manager and (sliver or "raw-pc") in _SLIVERS:
            nodes.append(node)
        else:
            name = node.get("client_id")
            draft.leave(node.sourceline, f"node {name} of sliver type {sliver} at {where}")
    if not nodes:
        why = "asks for no machine of sliver type raw-pc or emulab-xen"
        raise source.refusal(root.sourceline, why, "add a node")
    if manager:
        wall = _WALL.search(manager)
        host = f"www.{wall[1]}.ilabt.iminds.be" if wall else "fill-in.example.org"
        url = f"https://{host}:12369/protogeni/xmlrpc/am/3.0"
        draft.put("backend", "aggregate", value={"url": url, "urn": manager})
        if not wall:
            draft.remarks["backend", "aggregate", "url"] = "fill in: the aggregate manager's URL"
    _groups(draft, nodes)
    _network(draft, root, nodes)
    for one in root.iterdescendants(etree.Element):
        if local(one) not in _TAKEN:
            owners = (up.get("client_id") for up in one.iterancestors())
            draft.leave(
                one.sourceline, f"{local(one)} of {next(filter(None, owners), 'the request')}"
            )
    return draft


def _said(element: Any, *path: str, key: str = "name") -> str | None:
    return next((one.get(key) for one in children(element, *path)), None)


def _groups(draft: Draft, nodes: list[Any]) -> None:
    """Make node groups of nodes that are alike; a remark tells what the nodes were called."""
    alike: dict[tuple[Any, ...], list[Any]] = {}
    for node in nodes:
        xen = (_said(node, "sliver_type", "xen", key=key) for key in ("cores", "ram"))
        image, kind = _said(node, "sliver_type", "disk_image"), _said(node, "hardware_type")
        prefix, bound = (
            node.get("client_id", "").rstrip("0123456789"),
            "component_id" in node.attrib,
        )
        key = (prefix, _said(node, "sliver_type"), image, kind, bound, *xen)
        alike.setdefault(key, []).append(node)
    groups, hardware, images = dict[str, Any](), dict[str, Any](), dict[str, str]()
    for (prefix, sliver, image, kind, bound, cores, memory), same in alike.items():
        name, line = group_name(prefix, groups), same[0].sourceline
        draft.lines |= {("nodes", len(groups)): line, ("backend", "hardware", name): line}
        draft.remarks["nodes", len(groups), "name"] = ", ".join(
            n.get("client_id", "") for n in same
        )
        groups[name] = {"name": name, "count": len(same)}
        if cores or memory:
            sizes = {
                "cpus": cores and _number(draft, line, cores),
                "memory": memory and f"{memory} MiB",
            }
            groups[name]["machine"] = {key: size for key, size in sizes.items() if size}
        if system := _system(draft, line, image):
            groups[name]["image"], images[system] = system, str(image)
        options = {"type": kind, "sliver": _SLIVERS[sliver or "raw-pc"]}
        options["machines"] = [one.get("component_id") for one in same] if bound else None
        hardware[name] = {key: one for key, one in options.items() if one and one != "raw-pc"}
    draft.put("nodes", value=list(groups.values()), line=nodes[0].sourceline)
    draft.put(
        "backend", "hardware", value={key: one for key, one in hardware.items() if one} or None
    )
    draft.put("backend", "images", value=images or None)


def _system(draft: Draft, line: int, image: str | None) -> str | None:
    """Return the system of a disk image, or its name; None if the roles do not support it."""
    name = re.split(r"[+:/]", image or "")[-1]
    if (known := _SYSTEM.search(name)) is None:
        return group_name(name) if image else None
    ubuntu = known[1] == "UBUNTU"
    system = f"ubuntu-{known[2]}.{known[3] or '04'}" if ubuntu else f"debian-{int(known[2])}"
    if system in systems():
        return system
    draft.leave(line, f"disk image {name}: roles take {', '.join(systems())}")
    return None


def _number(draft: Draft, line: int, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise draft.source.refusal(line, f"{text!r} is no number") from None


def _network(draft: Draft, root: Any, nodes: list[Any]) -> None:
    """Make the experiment network of the link that joins most nodes."""
    owners = {end.get("client_id"): node for node in nodes for end in children(node, "interface")}
    joined = {
        link: {owners.get(end.get("client_id")) for end in children(link, "interface_ref")} - {None}
        for link in children(root, "link")
    }
    draft.put("networks", value=None)
    for rank, link in enumerate(sorted(joined, key=lambda one: -len(joined[one]))):
        if rank or len(joined[link]) < 2:
            draft.leave(link.sourceline, f"link {link.get('client_id')}: a cluster has one network")
            continue
        if len(joined[link]) < len(nodes):
            draft.leave(link.sourceline, "that the link leaves nodes out: a network joins all")
        network, subnets = _shape(draft, link, len(joined[link])), set()
        ends = {one.get("client_id") for one in children(link, "interface_ref")}
        for ip in (
            ip
            for one in ends & owners.keys()
            for e in children(owners[one], "interface")
            if e.get("client_id") == one
            for ip in children(e, "ip")
        ):
            with suppress(ValueError):
                address = f"{ip.get('address')}/{ip.get('netmask', '255.255.255.0')}"
                subnets.add(str(IPv4Interface(address).network))
        network |= {"subnet": subnets.pop()} if len(subnets) == 1 else {}
        draft.put("networks", value={"experiment": network}, line=link.sourceline)


def _shape(draft: Draft, link: Any, joined: int) -> dict[str, Any]:
    """Return rate, latency and loss from node to node; `rspec` tells what a property means."""
    worst = dict[str, float]()
    for key, choose in (("capacity", min), ("latency", max), ("packet_loss", max)):
        shapes = [one for one in children(link, "property") if one.get(key)]
        values = {_number(draft, one.sourceline, one.get(key)) for one in shapes}
        worst[key] = choose(values, default=0.0)
        if len(values) > 1:
            draft.leave(shapes[0].sourceline, f"{key} of each end: the worst counts")
    ends = 2 if joined > 2 else 1  # a packet crosses two ends of a LAN
    network: dict[str, Any] = {"rate": f"{(worst['capacity'] or 10**6) / 1000:.10g} Mbit/s"}
    if not worst["capacity"]:
        draft.remarks["networks", "experiment", "rate"] = "the link names none"
    if worst["latency"]:
        network["latency"] = f"{worst['latency'] * ends:.6g} ms"
    if worst["packet_loss"]:
        network["loss"] = round(1 - (1 - worst["packet_loss"]) ** ends, 8)
    return network
