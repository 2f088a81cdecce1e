"""A cluster's networks (bridges with planned subnets) and its shared volume."""

from __future__ import annotations

from datetime import UTC, datetime
from ipaddress import IPv4Network
from typing import Any

from docker.errors import APIError, NotFound
from docker.models.networks import Network
from docker.models.volumes import Volume
from docker.types import IPAMConfig, IPAMPool

from gpubed.backends.local import addresses, daemon, ownership, runtime
from gpubed.backends.local.ownership import Owner
from gpubed.core.errors import GpubedError
from gpubed.testbeds.driver import Driver, Properties

# The bridge carries all that a node sends; the node sets the MTU of its own link, so that another
# MTU does not need another network.
_MTU = {"control": 1500, "experiment": 9216}


class NetworkDriver(Driver):
    """Inputs: cluster, uuid, purpose (`control`, `experiment`), subnet."""

    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        """Make the network."""
        owner = Owner.of(inputs)
        digest = ownership.digest({key: inputs[key] for key in ("purpose", "subnet")})
        with daemon.errors(f"make the {inputs['purpose']} network"):
            found = ownership.own(_find(inputs), owner)
            if found is not None and ownership.labels(found).get(ownership.DIGEST) != digest:
                _require_unused(inputs)
                self.delete("", inputs)
                found = None
            found = found or _make(inputs, owner.labels(digest))
        return str(found.id), {"name": found.name}

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        """Look at the network; one that was recreated under the same name is another."""
        with daemon.errors(f"look at the {inputs['purpose']} network"):
            found = ownership.ours(_find(inputs), inputs)
        return {"name": found.name} if found and found.id == id else None

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        """Remove the network."""
        with daemon.errors(f"remove the {inputs['purpose']} network"):
            ownership.remove_until_gone(
                lambda: ownership.ours(_find(inputs), inputs), lambda network: network.remove()
            )


def _require_unused(inputs: Properties) -> None:
    """Refuse another subnet while nodes in use, whose state was lost, are on the network."""
    cluster = inputs["cluster"]
    label = f"{ownership.CLUSTER}={inputs['uuid']}"
    for container in daemon.client().containers.list(all=True, filters={"label": label}):
        if runtime.is_in_use(container):
            raise GpubedError(
                f"the {inputs['purpose']} network of {cluster} exists with another subnet, and its "
                f"nodes are in use: they would be replaced, with what is on their own disks",
                f"make inventories/{cluster}/cluster.yml what it was; or give the nodes up, not "
                f"the shared data: gpubed audit {cluster} --remove",
            )


def _find(inputs: Properties) -> Network | None:
    name = Owner.of(inputs).name(inputs["purpose"])
    # The daemon's filter matches parts of names.
    found = [n for n in daemon.client().networks.list(names=[name]) if n.name == name]
    return found[0] if found else None


def _make(inputs: Properties, labels: dict[str, str]) -> Network:
    subnet, purpose = IPv4Network(inputs["subnet"]), inputs["purpose"]
    pool = IPAMPool(subnet=str(subnet), gateway=str(subnet[1]))
    try:
        made = daemon.client().networks.create(
            Owner.of(inputs).name(purpose),
            driver="bridge",
            ipam=IPAMConfig(pool_configs=[pool]),
            # Only nodes are on the experiment network: no way out, no NAT.
            internal=purpose == "experiment",
            options={"com.docker.network.driver.mtu": str(_MTU[purpose])},
            labels=labels,
        )
    except APIError as error:
        if "overlap" not in daemon.reason(error).lower():
            raise
        cluster = inputs["cluster"]
        _, taken = addresses.in_use(cluster, inputs["uuid"])
        whose = next((text for net, text in taken if net.overlaps(subnet)), "another network")
        fix = f"set networks.{purpose}.subnet in inventories/{cluster}/cluster.yml"
        raise GpubedError(f"the {purpose} network {subnet} is used by {whose}", fix) from None
    return made


class VolumeDriver(Driver):
    """Inputs: cluster, uuid, purpose."""

    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        """Make the volume."""
        owner, digest = Owner.of(inputs), ownership.digest({"purpose": inputs["purpose"]})
        name = owner.name(inputs["purpose"])
        with daemon.errors("make the shared volume"):
            if ownership.own(_find_volume(inputs), owner) is None:
                # Docker's own CreatedAt is the time of the last change in the folder.
                made = {ownership.MADE: datetime.now(UTC).isoformat(timespec="seconds")}
                daemon.client().volumes.create(name, labels={**owner.labels(digest), **made})
        return name, {"name": name}

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        """Look at the volume."""
        with daemon.errors("look at the shared volume"):
            found = ownership.ours(_find_volume(inputs), inputs)
        return {"name": found.name} if found else None

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        """Keep the volume: it holds the user's data, and only `gpubed down` removes it."""


def _find_volume(inputs: Properties) -> Volume | None:
    try:
        return daemon.client().volumes.get(Owner.of(inputs).name(inputs["purpose"]))
    except NotFound:
        return None
