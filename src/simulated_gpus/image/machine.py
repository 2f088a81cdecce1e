"""What a node that pretends to have GPUs is made of. Standard library only.

A model (models/NAME.json) is what one GPU is; a board (boards.json) is what machines with
such GPUs look like. `machine` puts both together with this very computer's CPUs, and
`nvml_text` writes it down for the NVML library in nvml/, faults included.
"""

import hashlib
import json
import os
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Json = dict[str, Any]
Place = tuple[str, int]  # PCI address, socket

HERE = Path(__file__).resolve().parent
SOCKETS = 2
SMALL_BOARD = 4  # GPUs that are joined directly where a board of eight has switches
MEBIBYTE = 1 << 20

# Newest CUDA that a driver branch serves. CUDA release notes, table of drivers.
CUDA = {
    470: "11.4",
    525: "12.0",
    535: "12.2",
    550: "12.4",
    560: "12.6",
    565: "12.7",
    570: "12.8",
    575: "12.9",
    580: "13.0",
    590: "13.1",
    595: "13.2",
    610: "13.3",
}

# Numbers that NVML's reference gives to what the models call by name.
BRANDS = {"Tesla": 2, "GeForce": 5, "NVIDIA": 14}
ARCHITECTURES = {
    "Kepler": 2,
    "Maxwell": 3,
    "Pascal": 4,
    "Volta": 5,
    "Turing": 6,
    "Ampere": 7,
    "Ada": 8,
    "Hopper": 9,
    "Blackwell": 10,
}
IDLE, HARDWARE_SLOWDOWN, HARDWARE_THERMAL = 0x1, 0x8, 0x40  # clock event reasons

# What breaks a GPU as NVML sees it, and what only the driver's files show.
FAULTS = (
    "fallen-off-bus",
    "xid-79",
    "ecc-double-bit",
    "throttled",
    "requires-reset",
    "nvlink-down",
)
FAULTS_OF_THE_DRIVER = ("library-mismatch", "kernel-update")


def models() -> list[str]:
    """Return the names of the models there are."""
    return sorted(path.stem for path in (HERE / "models").glob("*.json"))


def load(path: str | Path) -> Json:
    """Return a model from its file."""
    model: Json = json.loads(Path(path).read_text())
    return model


def machine(model: Json, gpus: int, node: str, cpus: list[int] | None = None) -> Json:
    """Return a machine with this many GPUs of a model (what `load` returned).

    UUIDs and serial numbers follow from the node's name and the GPU's number: they stay
    the same over restarts. CPUs are those of this computer (`cpus`: others, for tests),
    shared out over two sockets.

    Raises:
        ValueError: more GPUs than such a machine has room for.
    """
    board = json.loads((HERE / "boards.json").read_text())[model["board"]]
    places = _places(board, gpus, model)
    minors = _minors(board, places)
    numa = _numa(cpus or sorted(os.sched_getaffinity(0)), places)
    switches = _switches(board, gpus)
    joined = _joined(board, gpus, model, switches)
    links = _links(places, joined, model, switches)
    paths = [[_path(board, places, row, column) for column in range(gpus)] for row in range(gpus)]
    return {
        "model": model,
        "node": node,
        "numa": [{"node": number, "cpus": part} for number, part in enumerate(numa)],
        "gpus": [
            {
                "index": index,
                "minor": minors[index],
                "pci": address,
                "uuid": f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{node}/{index}')}",
                "serial": _serial(node, index) if model["part_number"] else None,
                "numa_node": min(socket, len(numa) - 1),
                "cpus": numa[min(socket, len(numa) - 1)],
                "links": links[index],
            }
            for index, (address, socket) in enumerate(places)
        ],
        "nvswitches": switches,
        "fabric_manager": bool(switches),
        "subnet_manager": any("capability_mask" in switch for switch in switches),
        "paths": paths,
        "topology": _topology(paths, joined),
    }


def _places(board: Json, gpus: int, model: Json) -> list[Place]:
    """Return each GPU's PCI address and socket: the first half on the first socket."""
    first = (gpus + 1) // SOCKETS
    halves = [
        part[:count] for part, count in zip(board["addresses"], (first, gpus - first), strict=True)
    ]
    places = [(address, socket) for socket, part in enumerate(halves) for address in part]
    if not gpus or len(places) < gpus:
        room = sum(len(part) for part in board["addresses"])
        raise ValueError(f"a machine with {model['model']} has 1 to {room} GPUs, not {gpus}")
    return places


def _minors(board: Json, places: list[Place]) -> list[int]:
    """Return the number of each GPU's device file, in the order in which the kernel finds them."""
    addresses = [address for socket in board["addresses"] for address in socket]
    number = dict(zip(addresses, board.get("minors", range(len(addresses))), strict=True))
    found = [number[address] for address, _ in places]
    return [sorted(found).index(minor) for minor in found]


def _numa(cpus: list[int], places: list[Place]) -> list[list[int]]:
    """Return the CPUs of each NUMA node; one node where there is one CPU, or one GPU."""
    if len(cpus) < SOCKETS or len(places) < SOCKETS:
        return [cpus]
    half = len(cpus) // SOCKETS
    return [cpus[:half], cpus[half:]]


def _switches(board: Json, gpus: int) -> list[Json]:
    """Return what the node sees of the NVSwitches: they are on boards of eight.

    Where they are no PCI devices of their own, their bridges are listed in their place.
    """
    switches = board.get("switches")
    if not switches or (gpus <= SMALL_BOARD and "pair_links" in board):
        return []
    vendor, device = switches["device"].split(":")
    seen = {"vendor": vendor, "device": device}
    bridges = switches.get("bridges")
    if bridges:
        return [
            {
                **seen,
                "pci": bridge["address"],
                "class": "020700",
                "product_data": "SMDL=SW_MNG",
                "capability_mask": bridge["capability_mask"],
            }
            for bridge in bridges
        ]
    return [{**seen, "pci": address, "class": "068000"} for address in switches["addresses"]]


def _joined(board: Json, gpus: int, model: Json, switches: list[Json]) -> list[list[int]]:
    """Return how many NVLinks join GPU and GPU, row by row."""
    if not model["nvlink"]:
        return [[0] * gpus for _ in range(gpus)]
    if switches or gpus <= SMALL_BOARD:
        count = model["nvlink"]["links"] if switches else board["pair_links"]
        return [[0 if row == column else count for column in range(gpus)] for row in range(gpus)]
    return [row[:gpus] for row in board["mesh"][:gpus]]


def _links(
    places: list[Place], joined: list[list[int]], model: Json, switches: list[Json]
) -> list[list[Json]]:
    """Return the NVLinks of each GPU: to whom, and which link of the other one it is."""
    if not model["nvlink"]:
        return [[] for _ in places]
    if switches:
        return [_links_to(switches, gpu, model["nvlink"]["links"]) for gpu in range(len(places))]
    links: list[list[Json]] = [[] for _ in places]
    device = f"10de:{model['pci']['device']}"
    for row, counts in enumerate(joined):
        for column in range(row + 1, len(counts)):
            for _ in range(counts[column]):
                ends = len(links[row]), len(links[column])
                links[row].append(_link(ends[0], "gpu", places[column][0], device, ends[1]))
                links[column].append(_link(ends[1], "gpu", places[row][0], device, ends[0]))
    return links


def _links_to(switches: list[Json], gpu: int, count: int) -> list[Json]:
    """Return a GPU's links to the switches, shared out evenly."""
    return [
        _link(
            number,
            "switch",
            switches[number % len(switches)]["pci"],
            f"{switches[0]['vendor']}:{switches[0]['device']}",
            gpu * -(-count // len(switches)) + number // len(switches),
        )
        for number in range(count)
    ]


def _link(number: int, kind: str, pci: str, device: str, remote: int) -> Json:
    return {"link": number, "to": kind, "pci": pci, "device": device, "remote_link": remote}


def _topology(paths: list[list[str]], joined: list[list[int]]) -> list[list[str]]:
    """Return the matrix that `nvidia-smi topo -m` prints: NVLinks where there are, else PCIe."""
    return [
        [f"NV{links}" if links else path for path, links in zip(row, counts, strict=True)]
        for row, counts in zip(paths, joined, strict=True)
    ]


def _path(board: Json, places: list[Place], one: int, other: int) -> str:
    """Return how two GPUs reach each other over PCIe, in nvidia-smi's words."""
    if one == other:
        return "X"
    if places[one][1] != places[other][1]:
        return "SYS"
    on_card = board.get("gpus_per_card", 1)
    addresses = [address for address, socket in places if socket == places[one][1]]
    cards = {addresses.index(places[gpu][0]) // on_card for gpu in (one, other)}
    return "PIX" if len(cards) == 1 else board["near"]


def _serial(node: str, index: int) -> str:
    digest = hashlib.sha256(f"{node}/{index}".encode()).digest()
    return f"00{int.from_bytes(digest[:6], 'big') % 10**11:011d}"  # 13 digits; no real one has 00


def nvml_text(
    machine: Json,
    faults: Iterable[tuple[str, int]] = (),
    driver: str | None = None,
    module: str | None = None,
) -> str:
    """Return what the NVML library reads; nvml/README.md has the format.

    Args:
        machine: what `machine` returned.
        faults: pairs of a fault's name and the index of the GPU that has it.
        driver: version of the driver's libraries, say 580.82.07: tells the CUDA version.
        module: version of the kernel module that is loaded, or None.

    Raises:
        ValueError: a fault that nobody knows, or of a GPU that is not there.
    """
    faults = [(name, gpu) for name, gpu in faults if name not in FAULTS_OF_THE_DRIVER]
    for name, gpu in faults:
        if name not in FAULTS or gpu not in range(len(machine["gpus"])):
            raise ValueError(f"no fault {name!r} of GPU {gpu!r}")
    lines = ["gpubed-nvml 1", f"module {module or 'none'}"]
    if driver:
        lines.append(f"cuda {_cuda(driver)}")
    for gpu in machine["gpus"]:
        facts = _facts(machine, gpu)
        for name in [name for name, index in faults if index == gpu["index"]]:
            facts.update(_faulty(name, machine["model"], facts))
        lines += ["", f"gpu {gpu['index']}"]
        lines += [f"{key} {value}" for key, value in facts.items() if value is not None]
        lines += _listed(machine, gpu, [name for name, index in faults if index == gpu["index"]])
    return "\n".join(lines) + "\n"


def _cuda(driver: str) -> int:
    """Return NVML's number for the newest CUDA that a driver serves: 13000 for 13.0."""
    branch = int(driver.split(".")[0])
    major, minor = CUDA[max(known for known in CUDA if known <= max(branch, min(CUDA)))].split(".")
    return int(major) * 1000 + int(minor) * 10


def _facts(machine: Json, gpu: Json) -> Json:
    """Return a GPU's single values. None means that such a GPU has no such thing."""
    model = machine["model"]
    pci, clocks, power = model["pci"], model["clocks_mhz"], model["power_watts"]
    heat, inforom = model["temperature_celsius"], model["inforom"] or {}
    nvlink, counts = model["nvlink"] or {}, 0 if model["ecc"] is not None else None
    rows, pages = (0 if model["repair"] == kind else None for kind in ("rows", "pages"))
    return {
        "state": "ok",
        "name": model["name"],
        "brand": BRANDS[model["brand"]],
        "architecture": ARCHITECTURES[model["architecture"]],
        "compute_major": model["compute_capability"].split(".")[0],
        "compute_minor": model["compute_capability"].split(".")[1],
        "cores": model["cuda_cores"],
        "uuid": gpu["uuid"],
        "serial": gpu["serial"],
        "part_number": model["part_number"],
        "vbios": model["vbios"],
        "inforom_image": inforom.get("image"),
        "inforom_oem": inforom.get("oem"),
        "inforom_ecc": inforom.get("ecc"),
        "gsp": 1 if model["gsp"] else None,
        "minor": gpu["minor"],
        "module_id": gpu["index"] + 1,
        "pci": gpu["pci"],
        "pci_device": int(f"{pci['device']}10de", 16),
        "pci_subsystem": int(f"{pci['subsystem_device']}{pci['subsystem_vendor']}", 16),
        "pci_class": int(pci["class"], 16),
        "pcie_generation": pci["generation"],
        "pcie_width": pci["width"],
        "numa_node": gpu["numa_node"],
        "cpus": ",".join(str(cpu) for cpu in gpu["cpus"]),
        "memory": model["memory"]["bytes"],
        "memory_reserved": model["memory"]["reserved_bytes"],
        "memory_bus": model["memory"]["bus_bits"],
        "bar1": max(bar["bytes"] for bar in pci["bars"]),
        "graphics_clock": clocks["graphics"]["idle"],
        "graphics_clock_application": clocks["graphics"]["application"],
        "graphics_clock_max": clocks["graphics"]["max"],
        "memory_clock": clocks["memory"]["idle"],
        "memory_clock_max": clocks["memory"]["max"],
        "video_clock": clocks["video"]["idle"],
        "video_clock_max": clocks["video"]["max"],
        "clock_reasons": IDLE,
        "power": round(power["idle"] * 1000),
        "power_limit": power["default"] * 1000,
        "power_min": power["min"] * 1000,
        "power_max": power["max"] * 1000,
        "temperature": heat["idle"],
        "temperature_memory": heat["memory_idle"],
        "temperature_max": heat["max"],
        "temperature_slowdown": heat["slowdown"],
        "temperature_shutdown": heat["shutdown"],
        "fan": 30 if model["fan"] else None,
        "ecc": None if model["ecc"] is None else int(model["ecc"]),
        "ecc_corrected": counts,
        "ecc_uncorrected": counts,
        "remap_banks": model["remap_banks"],
        "remapped_corrected": rows,
        "remapped_uncorrected": rows,
        "remap_pending": rows,
        "pages_corrected": pages,
        "pages_uncorrected": pages,
        "pages_pending": pages,
        "nvlink_version": nvlink.get("version"),
        "nvlink_speed": nvlink.get("megabytes_per_second"),
        "fabric": 1 if machine["fabric_manager"] and model["architecture"] != "Ampere" else None,
        "mig": 0 if model["mig"] else None,
    }


def _faulty(fault: str, model: Json, facts: Json) -> Json:
    """Return the values that a fault changes."""
    if fault in ("fallen-off-bus", "xid-79"):
        return {"state": "lost"}
    if fault == "requires-reset":
        return {"state": "reset"}
    if fault == "throttled":
        return {
            "clock_reasons": HARDWARE_SLOWDOWN | HARDWARE_THERMAL,
            "temperature": facts["temperature_slowdown"] + 1,
        }
    if fault == "ecc-double-bit" and model["ecc"]:
        repair = {"rows": "remap", "pages": "pages"}[model["repair"]]
        counted = "remapped_uncorrected" if repair == "remap" else "pages_uncorrected"
        return {"ecc_uncorrected": 2, counted: 1, f"{repair}_pending": 1}
    return {}


def _listed(machine: Json, gpu: Json, faults: list[str]) -> list[str]:
    """Return the lines of what a GPU has several of: ways to other GPUs, NVLinks, MIG profiles."""
    lines = [
        f"peer {other} {path} {int(machine['topology'][gpu['index']][other] != path)}"
        for other, path in enumerate(machine["paths"][gpu["index"]])
        if path != "X"
    ]
    for link in gpu["links"]:
        down = "nvlink-down" in faults and link["link"] == 0
        vendor, device = link["device"].split(":")
        lines.append(
            f"link {link['link']} {'down' if down else 'up'} {link['to']} {link['pci']}"
            f" {int(device + vendor, 16)} {link['remote_link']}"
        )
    count = (machine["model"]["nvlink"] or {"links": 0})["links"]
    lines += [f"link {number} down" for number in range(len(gpu["links"]), count)]
    for profile in (machine["model"]["mig"] or {}).get("profiles", []):
        keys = (
            "enumerant",
            "id",
            "slices",
            "memory_slices",
            "count",
            "memory_mib",
            "multiprocessors",
        )
        lines.append(
            " ".join(["mig_profile", *(str(profile[key]) for key in keys), profile["name"]])
        )
    return lines
