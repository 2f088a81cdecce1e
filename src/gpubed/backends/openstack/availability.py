"""Whether a cloud can give a cluster: looked at before the first create.

A server that a cloud cannot give ends in the state ERROR, minutes later and with a
sentence that hides the reason. So quota, flavors, images, networks, zones and
extensions are asked for first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from openstack import exceptions
from openstack.connection import Connection

from gpubed.backends.openstack import flavors, labels, quota
from gpubed.backends.openstack.needs import GroupNeeds, Needs
from gpubed.testbeds.base import Finding

GROUP = "gpubed.group"
_GIB = 2**30
ID = re.compile(r"[0-9a-f]{8}(?:-?[0-9a-f]{4}){3}-?[0-9a-f]{12}")
_PROBE = "gpubed-probe"


def findings(connection: Connection, needs: Needs, held: Needs | None = None) -> list[Finding]:
    """Look at everything that a cloud must have.

    Args:
        needs: What is wanted.
        held: What of it is there already.
    """
    found: dict[str, Any] = {
        name: _flavor(connection, name)
        for name in {group.server.flavor for group in (*needs.groups, *(held or needs).groups)}
    }
    looked = [
        *(finding for group in needs.groups for finding in _group(connection, group, found)),
        *_diskless(connection, needs, held, found),
        _external(connection, needs.external_network),
        *_extensions(connection, needs, held),
    ]
    if all(finding.ok for finding in looked):
        looked += _quota(connection, needs, held, found)
    return looked


def retired(
    connection: Connection, needs: Needs, before: Needs, cluster: str, uuid: str | None
) -> list[Finding]:
    """Return groups that lack nodes, and whose pinned image the cloud has no more.

    Nodes to come are made of the image that those that are there were made of, whatever its name
    means by now. Servers that boot from a volume do not tell theirs.

    Args:
        connection: To the cloud.
        needs: What is wanted.
        before: The needs of the specification that was applied last.
        cluster: The cluster's name, which another one of the project may have.
        uuid: Its UUID; None where it has none yet.
    """
    names = {group.name: group.image for group in before.groups}
    found = list[Finding]()
    for group in needs.groups:
        servers = [
            server
            for server in connection.compute.servers(details=True)
            if labels.is_own(server.metadata or {}, cluster, uuid)
            and server.metadata.get(GROUP, "") == group.name
        ]
        if names.get(group.name) != group.image or len(servers) >= group.count:
            continue  # another name is looked up anew
        for id_ in {str(server.image.id) for server in servers if _image_id(server)}:
            image = connection.image.find_image(id_)
            if image is None or image.status != "active":
                found.append(_gone(group, id_))
    return found


def _image_id(server: Any) -> str | None:
    return server.image.id if server.image else None


def _gone(group: GroupNeeds, id_: str) -> Finding:
    message = (
        f"image {group.image} ({id_}), which the nodes of group {group.name} were made of, can be "
        "booted no more: no node can be added or made again"
    )
    fix = (
        "name another image under backend.images: that replaces all nodes made of this one, with "
        "what is on their own disks; or ask the cloud's operators for it"
    )
    return Finding("openstack.image", False, message, fix)


def _flavor(connection: Connection, name: str) -> Any:
    """Return the flavor of a name or a UUID: the plugin knows no other ids."""
    found = connection.compute.find_flavor(name, get_extra_specs=True)
    return found if found is not None and (found.name == name or ID.fullmatch(name)) else None


def held(
    connection: Connection,
    needs: Needs,
    cluster: str,
    uuid: str | None,
    before: Needs | None = None,
) -> Needs | None:
    """Return what of a cluster's needs is met by servers that it has; None when it has none.

    Args:
        connection: To the cloud.
        needs: What is wanted.
        cluster: The cluster's name, which another one of the project may have.
        uuid: Its UUID; None where it has none yet.
        before: What they were made for, where that is known: the same but for their number, else.
    """
    counts: Counter[str] = Counter()
    for server in connection.compute.servers(details=True):
        if labels.is_own(server.metadata or {}, cluster, uuid):
            counts[server.metadata.get(GROUP, "")] += 1
    if not counts:
        return None
    made = before or needs
    # Of another group, servers go after those that come.
    stay = [group for group in made.groups if group.name in {g.name for g in needs.groups}]
    groups = tuple(group.model_copy(update={"count": counts[group.name]}) for group in stay)
    return made.model_copy(update={"groups": groups, "members": min(made.members, counts.total())})


def images(connection: Connection, name: str) -> list[Any]:
    """Return the images of a name, or of an id, that can be booted."""
    found = list(connection.image.images(name=name))
    if not found and ID.fullmatch(name):
        # Names may be used twice, and operators do so when they renew an image.
        image = connection.image.find_image(name)
        found = [image] if image else []
    return [image for image in found if image.status == "active"]


def external_networks(connection: Connection, name: str) -> list[Any]:
    """Return the external networks of a name."""
    return list(connection.network.networks(name=name, is_router_external=True))


def one(what: str, name: str, found: list[Any], others: list[str]) -> Finding:
    """Judge whether exactly one thing has a name."""
    id_ = f"openstack.{what}"
    if len(found) == 1:
        return Finding(id_, True, f"{what} {name}")
    if found:
        ids = ", ".join(thing.id for thing in found)
        fix = "write its id under backend.images" if what == "image" else f"use another {what}"
        return Finding(id_, False, f"{len(found)} {what}s are named {name!r}: {ids}", fix)
    there = ", ".join(sorted(others)[:10]) or "none at all"
    message = f"there is no {what} {name!r}; there are: {there}"
    return Finding(id_, False, message, "take one that exists")


def _group(connection: Connection, group: GroupNeeds, found: dict[str, Any]) -> Iterator[Finding]:
    flavor = found[group.server.flavor]
    if flavor is None:
        names = [other.name for other in connection.compute.flavors()]
        yield one("flavor", group.server.flavor, [], names)
    else:
        yield one("flavor", flavor.name, [flavor], [])
        yield from _gpus(group, flavor)
    image = images(connection, group.image)
    names = [] if image else [other.name for other in connection.image.images()]
    yield one("image", group.image, image, names)
    if flavor is not None and len(image) == 1:
        yield _fits_image(group, flavor, image[0])
    if group.server.availability_zone:
        yield _zone(connection, group.server.availability_zone)


def _gpus(group: GroupNeeds, flavor: Any) -> Iterator[Finding]:
    if not group.gpus:
        return
    known = flavors.gpus(flavor.extra_specs or {})
    wanted = f"group {group.name}: {group.gpus} GPU(s) per node are wanted"
    if known is None:
        # Not every cloud shows them to its users, so that verify has the last word.
        message = f"{wanted}, flavor {flavor.name} does not tell what it has"
        yield Finding("openstack.gpus", True, message)
        return
    right = known.count >= group.gpus
    message = f"{wanted}, flavor {flavor.name} has {known.count} ({known.model})"
    yield Finding("openstack.gpus", right, message, None if right else "gpubed resources CLUSTER")


def _fits_image(group: GroupNeeds, flavor: Any, image: Any) -> Finding:
    boot = group.server.boot_volume
    disk = -(-boot // _GIB) if boot else flavor.disk
    smallest = max(image.min_disk or 0, -(-(image.size or 0) // _GIB))
    # A flavor without a disk leaves its size to the image.
    small_disk = disk and disk < smallest
    small_ram = flavor.ram < (image.min_ram or 0)
    what = "boot volume" if boot else f"flavor {flavor.name}"
    if small_disk:
        message = f"image {group.image} needs {smallest} GiB of disk, {what} has {disk}"
    elif small_ram:
        message = f"image {group.image} needs {image.min_ram} MiB, {what} has {flavor.ram}"
    else:
        message = f"image {group.image} fits {what}"
    right = not (small_disk or small_ram)
    fix = None if right else "set backend.boot_volume, or take a larger flavor"
    return Finding("openstack.disk", right, message, fix)


def _diskless(
    connection: Connection, needs: Needs, held: Needs | None, found: dict[str, Any]
) -> Iterator[Finding]:
    """Refuse flavors without a disk where the image needs one: Nova does, minutes later.

    Its default lets administrators alone start them; a cloud that lets everybody has shown so
    where such servers of the cluster are there.
    """
    there = {group.name: group for group in held.groups if group.count} if held else {}
    for group in needs.groups:
        flavor, server = found[group.server.flavor], group.server
        if flavor is None or flavor.disk or server.boot_volume:
            continue
        before = there.get(group.name)
        proved = before is not None and before.server.flavor == server.flavor
        if not proved and not _is_administrator(connection):
            message = f"group {group.name}: flavor {flavor.name} has no disk to boot from"
            fix = "set backend.boot_volume (or boot_volume of the group), such as 40 GiB"
            yield Finding("openstack.disk", False, message, fix)


def _is_administrator(connection: Connection) -> bool:
    login: Any = connection.session.auth  # of any kind
    return "admin" in login.get_access(connection.session).role_names


def _zone(connection: Connection, name: str) -> Finding:
    zones = [zone for zone in connection.compute.availability_zones() if zone.state["available"]]
    found = [zone for zone in zones if zone.name == name]
    return one("availability zone", name, found, [zone.name for zone in zones])


def _external(connection: Connection, name: str) -> Finding:
    others = [n.name for n in connection.network.networks(is_router_external=True)]
    return one("external network", name, external_networks(connection, name), others)


def _extensions(connection: Connection, needs: Needs, held: Needs | None) -> Iterator[Finding]:
    if needs.qos and not (held and held.qos):
        yield _qos(connection)
    if needs.counted()["volumes"]:
        yield _has(
            "volumes",
            connection.has_service("block-storage"),
            "has no volumes: there is no block storage service",
            "leave boot_volume and data_volumes out",
        )


def _qos(connection: Connection) -> Finding:
    there = connection.network.find_extension("qos") is not None
    lack = "its network service has no QoS"
    if there and not _may_limit(connection):
        there, lack = False, "it lets only its operators make QoS policies"
    return _has(
        "qos",
        there,
        f"cannot hold links to a rate: {lack}",
        "set backend.shaping: none, and networks.experiment.rate to what links carry",
    )


def _may_limit(connection: Connection) -> bool:
    """Say whether the project may make QoS policies: nothing but an attempt tells.

    Neutron allows it to administrators alone unless the cloud's own policy says otherwise,
    and shows that policy to nobody.
    """
    network = connection.network
    # One that a killed run left goes first.
    for left in network.qos_policies(name=_PROBE, project_id=connection.current_project_id):
        network.delete_qos_policy(left)
    try:
        policy = network.create_qos_policy(name=_PROBE, description="gpubed: removed at once")
    except exceptions.ForbiddenException:
        return False
    try:
        network.create_qos_bandwidth_limit_rule(policy, max_kbps=1000, direction="egress")
    except exceptions.ForbiddenException:
        return False
    finally:
        network.delete_qos_policy(policy)
    return True


def _has(what: str, there: bool, lack: str, fix: str) -> Finding:
    if there:
        return Finding(f"openstack.{what}", True, f"{what}: yes")
    return Finding(f"openstack.{what}", False, f"this cloud {lack}", fix)


def _quota(
    connection: Connection, needs: Needs, held: Needs | None, found: dict[str, Any]
) -> Iterator[Finding]:
    wanted = _wanted(needs, found)
    if held:
        wanted -= _wanted(held, found)  # keeps what is positive
    # Not a sum: what is in use by other groups does not count.
    members = needs.members if not held or needs.members > held.members else 0
    wanted["server_group_members"] = members
    volumes = bool(wanted["volumes"] or wanted["gigabytes"])  # those that are there may grow
    short = [
        limit.shortage(wanted[limit.name])
        for limit in quota.read(connection, volumes=volumes)
        if wanted[limit.name] > limit.left
    ]
    if not short:
        yield Finding("openstack.quota", True, f"quota: {wanted['instances']} more server(s) fit")
    for message in short:
        fix = "lower count, free what you no longer need, or ask the cloud's operators for more"
        if "server group" in message:
            fix = "set backend.anti_affinity: none, or ask the cloud's operators for more"
        yield Finding("openstack.quota", False, message, fix)


def _wanted(needs: Needs, found: dict[str, Any]) -> Counter[str]:
    wanted = needs.counted()
    for group in needs.groups:
        flavor = found[group.server.flavor]
        if flavor is not None:  # an old one may have gone
            wanted["cores"] += group.count * flavor.vcpus
            wanted["ram"] += group.count * flavor.ram
    return wanted
