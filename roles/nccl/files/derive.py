"""Derives NCCL's settings from a node's addresses and RDMA adapters; prints them as JSON.

The interface is found by the node's address, never by its name. An adapter's port counts
when its link is up and it leads to the same network: on Ethernet it belongs to an interface
with an address there, and is as fast as that of the node's address (as in gpubed-rdma, which
sets it up); InfiniBand is a fabric of its own. Adapters that manage the NVSwitches of a board
(from NVLink 5 on) look like InfiniBand, and lead nowhere.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def interfaces(addresses: list[dict[str, Any]], subnet: str) -> list[str]:
    """Return the interfaces with an address in the network.

    Args:
        addresses: What `ip -json -4 address` answers.
        subnet: The network, such as 10.0.0.0/8, or one address.
    """
    network = ipaddress.ip_network(subnet)
    return [
        device["ifname"]
        for device in addresses
        if any(ipaddress.ip_address(a["local"]) in network for a in device.get("addr_info", ()))
    ]


def adapters(sys_folder: Path, devices: list[str], network: list[str]) -> list[str]:
    """Return the ports of RDMA adapters to use, such as mlx5_0:1.

    Args:
        sys_folder: /sys, or a copy of it.
        devices: The interfaces that collectives run over.
        network: All interfaces of the same network: a host may have an adapter per GPU.
    """
    found = sorted((sys_folder / "class/infiniband").glob("*"))
    ports = [port for a in found if not manages(a) for port in sorted(a.glob("ports/*"))]
    rates = {rate(port) for port in ports if usable(port, devices) and not fabric(port)}
    return [
        f"{port.parts[-3]}:{port.name}"
        for port in ports
        if usable(port, network) and (fabric(port) or rate(port) in rates)
    ]


def manages(adapter: Path) -> bool:
    """Return whether an adapter manages NVSwitches, by its product data (as gpubed-facts does)."""
    try:
        return b"SW_MNG" in (adapter / "device/vpd").read_bytes()
    except OSError:
        return False


def usable(port: Path, devices: list[str]) -> bool:
    """Return whether a port is up and is in the network of the interfaces."""
    if not (port / "state").read_text().strip().endswith("ACTIVE"):
        return False
    return fabric(port) or any(name in devices for name in netdevs(port))


def fabric(port: Path) -> bool:
    """Return whether a port belongs to InfiniBand."""
    return (port / "link_layer").read_text().strip() == "InfiniBand"


def rate(port: Path) -> str:
    """Return the rate of a port as the kernel writes it: 400 Gb/sec (4X NDR)."""
    return (port / "rate").read_text().strip()


def netdevs(port: Path) -> Iterator[str]:
    """Return the interfaces that an Ethernet port belongs to; empty entries have none."""
    for entry in sorted((port / "gid_attrs/ndevs").glob("*")):
        try:
            yield entry.read_text().strip()
        except OSError:
            continue


def settings(devices: list[str], ports: list[str], dscp: int | None) -> dict[str, str]:
    """Return the content of /etc/nccl.conf.

    Args:
        devices: The interfaces that collectives run over.
        ports: The ports of RDMA adapters.
        dscp: Of RDMA packets; None where RDMA was not asked for.

    The leading equals sign of a value asks NCCL for exactly this name: eth1 alone
    would also mean eth10.
    """
    found = {"NCCL_SOCKET_IFNAME": "=" + ",".join(devices)}
    if ports:
        found["NCCL_IB_HCA"] = "=" + ",".join(ports)
    else:
        found["NCCL_IB_DISABLE"] = "1"
    if dscp is not None:
        found["NCCL_NET"] = "IB"
        # The traffic class of role rdma: DSCP, and "ECN-capable" (RFC 3168: ECT(0) is 2).
        found["NCCL_IB_TC"] = str(dscp << 2 | 2)
    return found


def main() -> None:
    """Read the node's properties and print the settings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True, help="of the node")
    parser.add_argument("--subnet", required=True, help="that it is in")
    parser.add_argument("--sys", type=Path, default=Path("/sys"))
    parser.add_argument("--dscp", type=int, help="use RDMA, with packets marked so")
    arguments = parser.parse_args()
    asked = subprocess.run(["ip", "-json", "-4", "address"], capture_output=True, check=True)
    addresses = json.loads(asked.stdout)
    devices = interfaces(addresses, arguments.address)
    ports = adapters(arguments.sys, devices, interfaces(addresses, arguments.subnet))
    found = settings(devices, ports, arguments.dscp)
    json.dump({"devices": devices, "ports": ports, "settings": found}, sys.stdout)


if __name__ == "__main__":
    main()
