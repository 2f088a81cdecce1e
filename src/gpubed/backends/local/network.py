"""Networks of a cluster: Docker bridges with a subnet that the plan chose."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Any

from docker.errors import APIError
from docker.models.networks import Network
from docker.types import IPAMConfig, IPAMPool

from gpubed.backends.local import daemon, ownership, runtime
from gpubed.backends.local.ownership import Owner
from gpubed.core.errors import GpubedError
from gpubed.testbeds.driver import Driver, Properties

# The bridge carries whatever a node sends; the node sets the MTU of its own link,
# so that another MTU does not need another network.
_MTU = {"control": 1500, "experiment": 9216}


class NetworkDriver(Driver):
    """Inputs: cluster, uuid, purpose (`control`, `experiment`), subnet."""

    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        """Make the network."""
        owner, digest = Owner.of(inputs), _digest(inputs)
        with daemon.errors(f"make the {inputs['purpose']} network"):
            found = ownership.own(_find(inputs), owner)
            if found is not None and ownership.labels(found).get(ownership.DIGEST) != digest:
                _require_unused(inputs)
                self.delete("", inputs)
                found = None
            found = found or _make(inputs, owner.labels(digest))
        return str(found.id), _result(found)

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        """Look at the network; one that was made anew under its name is another."""
        with daemon.errors(f"look at the {inputs['purpose']} network"):
            found = ownership.ours(_find(inputs), inputs)
        return _result(found) if found and found.id == id else None

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        """Remove the network."""
        with daemon.errors(f"remove the {inputs['purpose']} network"):
            ownership.remove_until_gone(
                lambda: ownership.ours(_find(inputs), inputs), lambda network: network.remove()
            )


def _digest(inputs: Properties) -> str:
    return ownership.digest({key: inputs[key] for key in ("purpose", "subnet")})


def _result(network: Network) -> dict[str, Any]:
    return {"name": network.name}


def _require_unused(inputs: Properties) -> None:
    """Refuse to remove a network of other addresses from under nodes whose state was lost."""
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
            # Nothing but the nodes is on the experiment network: no way out, no NAT.
            internal=purpose == "experiment",
            options={"com.docker.network.driver.mtu": str(_MTU[purpose])},
            labels=labels,
        )
    except APIError as error:
        if "overlap" not in daemon.reason(error).lower():
            raise
        raise _taken(subnet, inputs) from None
    return made


def _taken(subnet: IPv4Network, inputs: Properties) -> GpubedError:
    """Return what to tell when addresses are in use: by whom, and what to do."""
    cluster, purpose = inputs["cluster"], inputs["purpose"]
    for network in daemon.client().networks.list(filters={"label": ownership.CLUSTER}):
        pools = network.attrs["IPAM"]["Config"] or ()
        has = ownership.labels(network)
        if any(IPv4Network(pool["Subnet"]).overlaps(subnet) for pool in pools):
            owner, uuid = has.get(ownership.NAME), has[ownership.CLUSTER]
            if owner == cluster:
                return GpubedError(
                    f"another {cluster} has the {purpose} network {subnet} (uuid {uuid}): "
                    "of another project, or this one before its state was lost",
                    f"gpubed audit {cluster} names what it has, and takes it over or removes it",
                )
            return GpubedError(
                f"cluster {owner} has a network that overlaps with {purpose} {subnet}",
                f"set networks.{purpose}.subnet in inventories/{cluster}/cluster.yml",
            )
    return GpubedError(
        f"the {purpose} network {subnet} overlaps with another network of this machine",
        f"set networks.{purpose}.subnet in inventories/{cluster}/cluster.yml",
    )
