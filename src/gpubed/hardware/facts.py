"""The hardware of a node: the output of `gpubed-facts`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gpubed.core import reading
from gpubed.hardware.table import table
from gpubed.nodes.allocation import Allocation


class _Model(BaseModel):
    # The node's gpubed-facts may be newer.
    model_config = ConfigDict(extra="ignore", frozen=True)


class Pcie(_Model):
    """The capacity of a PCI Express link: GT/s per lane, and number of lanes."""

    gts: float = Field(gt=0)
    lanes: int = Field(gt=0, le=32)

    @property
    def rate(self) -> float:
        """Byte/s in one direction, without the overhead of the line code (PCI-SIG)."""
        code = 8 / 10 if self.gts <= 5 else 128 / 130
        return self.gts * 1e9 * self.lanes * code / 8

    def __str__(self) -> str:
        return f"{self.gts:g} GT/s x{self.lanes}"


class GPU(_Model):
    """A GPU on a node's PCI bus."""

    pci: str  # address, as `0000:1b:00.0`
    device_id: str  # PCI device id, four hexadecimal digits
    chip: str | None = None
    generation: str | None = None  # NVIDIA's name of it (`Hopper`); None if the id is unknown
    compute_capability: str | None = None
    numa_node: int | None = None  # None if the firmware does not report it
    cpus: str | None = None  # the nearest CPUs, as `0-19,40-59`
    # Maximum of the narrowest link between card and CPU, bridges and slot included.
    pcie: Pcie | None = None
    index: int | None = None  # the driver's number of it; None without a driver
    name: reading.Name | None = None
    uuid: str | None = None
    memory_mib: int | None = None
    driver: reading.Name | None = None
    mig: bool | None = None  # whether Multi-Instance GPU is on; None if the GPU lacks it
    # Distances to other GPUs (`GPU1`), NICs and HCAs by name, in the words of nvidia-smi: `NV18`
    # (18 NVLinks), `PIX`, `PXB`, `PHB`, `NODE`, `SYS`.
    links: Mapping[str, str] = {}

    @property
    def title(self) -> str:
        """Its product name; without a driver, its generation and chip, or its device id."""
        chip = f"{self.generation} {self.chip}" if self.chip else f"NVIDIA {self.device_id}"
        return self.name or chip


class Driver(_Model):
    """The driver of a node."""

    loaded: reading.Name | None = None  # version of the loaded kernel module
    installed: reading.Name | None = None  # the version on disk, which may not be loaded yet
    unfinished: tuple[str, ...] = ()  # packages of it that dpkg has not finished installing
    runfile: bool = False  # whether it was installed by NVIDIA's .run file instead of apt
    open: bool | None = None  # whether the loaded module is NVIDIA's open one
    nouveau: bool = False


class Interface(_Model):
    """A network interface; speed in Mbit/s, -1 if unknown."""

    name: reading.Name
    speed: int = -1
    mtu: int
    state: reading.Name
    driver: reading.Name | None = None
    pci: str | None = None
    numa_node: int | None = None
    addresses: tuple[str, ...] = ()


class Port(_Model):
    """A port of an RDMA device; rate in Gbit/s."""

    port: int
    state: reading.Name
    rate_gbps: float | None = None
    link_layer: reading.Name | None = None
    netdevs: tuple[str, ...] = ()


class HCA(_Model):
    """An RDMA device (HCA)."""

    name: reading.Name
    firmware: reading.Name | None = None
    pci: str | None = None
    numa_node: int | None = None
    ports: tuple[Port, ...] = ()

    @property
    def active(self) -> bool:
        """Whether any port carries traffic."""
        return any(port.state == "ACTIVE" for port in self.ports)


class Disk(_Model):
    """A local disk of the node; size in bytes."""

    name: reading.Name
    bytes: int
    model: reading.Name | None = None
    rotational: bool = False
    nvme: bool = False


class NumaNode(_Model):
    """CPUs that share a memory controller, as `0-19,40-59`."""

    node: int
    cpus: str


class Facts(_Model):
    """The hardware of a node."""

    schema_: Literal["gpubed/facts/2"] = Field(alias="schema")
    host: reading.Name
    kernel: reading.Name
    cpus: int
    memory_kib: int = Field(lt=2**60)
    numa: tuple[NumaNode, ...] = ()
    gpus: tuple[GPU, ...] = ()
    nvswitches: tuple[str, ...] = ()  # PCI addresses of NVSwitches, or of bridges that manage them
    driver: Driver = Driver()
    interfaces: tuple[Interface, ...] = ()
    hcas: tuple[HCA, ...] = ()
    disks: tuple[Disk, ...] = ()
    simulated: reading.Name | None = None  # the model of its GPUs if they are simulated

    @property
    def generations(self) -> frozenset[str]:
        """The GPU generations of the node; `unknown` for GPUs that are not in the table."""
        return frozenset(gpu.generation or "unknown" for gpu in self.gpus)

    @property
    def nvlink5(self) -> bool:
        """Whether NVSwitches of NVLink 5 connect its GPUs, which are managed like InfiniBand.

        The PCI bus shows bridges to them; a full baseboard has them even without visible bridges.
        """
        chips = [gpu for gpu in self.gpus if gpu.chip in table().nvlink5]
        return bool(chips and self.nvswitches) or len(chips) == table().nvlink5_board

    @property
    def fabric(self) -> bool:
        """Whether NVSwitches connect its GPUs, so that it needs Fabric Manager."""
        return bool(self.nvswitches) or self.nvlink5

    @property
    def words(self) -> str:
        """The node's hardware in one line."""
        gpus = Counter(gpu.title for gpu in self.gpus)
        memory = f"{self.memory_kib / 2**20:.0f} GiB"
        kinds = [f"{count} x {title}" for title, count in gpus.items()]
        return ", ".join([f"{self.cpus} CPUs", memory, *kinds])

    def summary(self) -> dict[str, Any]:
        """Return a node's hardware for `status --json`."""
        return {
            "cpus": self.cpus,
            "memory_kib": self.memory_kib,
            "gpus": [
                {
                    "name": gpu.title,
                    "generation": gpu.generation,
                    "compute_capability": gpu.compute_capability,
                    "memory_mib": gpu.memory_mib,
                    "numa_node": gpu.numa_node,
                    "pci": gpu.pci,
                }
                for gpu in self.gpus
            ],
            "nvswitches": len(self.nvswitches),
            "driver": self.driver.loaded,
            "simulated": self.simulated,
            "interfaces": [
                {"name": nic.name, "speed_mbps": nic.speed, "numa_node": nic.numa_node}
                for nic in self.interfaces
            ],
            "hcas": [hca.model_dump(mode="json") for hca in self.hcas],
            "disks": [disk.model_dump(mode="json") for disk in self.disks],
        }


def load(path: Path) -> Facts | None:
    """Read the stored facts of a node; None if there are none or they cannot be read."""
    try:
        return reading.file(path).json(Facts)
    except reading.Unreadable:
        return None


def of_cluster(folder: Path, allocation: Allocation) -> dict[str, Facts]:
    """Return the stored facts of a cluster's nodes, by node name."""
    found = {node.name: load(folder / f"{node.id}.json") for node in allocation.nodes}
    return {name: facts for name, facts in found.items() if facts is not None}
