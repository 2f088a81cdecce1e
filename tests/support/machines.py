"""Recorded machines: what `gpubed-facts` would read there, from the outputs of their tools.

A folder under `tests/unit/hardware/machines` holds `lspci.txt` (`lspci -Dnn`), and where
there is a driver or an HCA also `nvidia-smi.csv`, `topo.txt` (`nvidia-smi topo -m`) and
`ibstat.txt`. Lines that begin with # say where they come from.

sysfs itself is nowhere recorded: its files are written here from those outputs. NUMA nodes
and CPUs come from the matrix of `topo -m`, for all devices where it names only GPUs.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MACHINES = ROOT / "tests/unit/hardware/machines"
COLLECTOR = ROOT / "roles/hardware/files/gpubed-facts"
NAMES = sorted(path.name for path in MACHINES.iterdir())
_PCI = re.compile(
    r"(?P<address>\S+) .*\[(?P<class_>\w{4})\]: .*\[(?P<vendor>\w{4}):(?P<device>\w{4})\]"
)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
# Answers like nvidia-smi; stands in for the driver, which needs a GPU.
_NVIDIA_SMI = """#!/bin/sh
case "$1" in
  topo) cat {folder}/topo.txt ;;
  --query-gpu=*) cat {folder}/nvidia-smi.csv ;;
  *) exit 2 ;;
esac
"""


def facts(name, folder, *, driver=True):
    """Return what `gpubed-facts` prints on a recorded machine."""
    build(name, folder, driver=driver)
    return collect(folder)


def collect(folder, *words, program=COLLECTOR, stdin=None):
    """Return what `gpubed-facts` prints with a folder for its root."""
    environment = {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, program, "--root", folder, *words],
        stdin=stdin,
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def build(name, folder, *, driver=True):
    """Write sysfs and programs of a recorded machine."""
    recorded = MACHINES / name
    (folder / "bin").mkdir(parents=True)
    places = _places(recorded)
    devices = list(_pci(recorded))
    gpus = [d for d in devices if d["vendor"] == "10de" and d["class_"] in ("0300", "0302")]
    for device in devices:
        number = gpus.index(device) if device in gpus else len(places)
        where = places[number] if number < len(places) else ("", -1)
        _write_device(folder / "sys/bus/pci/devices" / device["address"], device, where)
    for node, cpus in {node: cpus for cpus, node in places}.items():
        _write(folder / f"sys/devices/system/node/node{node}/cpulist", cpus)
    for hca in _hcas(recorded):
        _write_hca(folder / "sys/class/infiniband", hca)
    if driver and (recorded / "nvidia-smi.csv").is_file():
        _install_driver(recorded, folder)


def _text(path):
    lines = path.read_text().splitlines(keepends=True) if path.is_file() else []
    return "".join(line for line in lines if not line.startswith("#"))


def _pci(recorded):
    return (m.groupdict() for m in map(_PCI.match, _text(recorded / "lspci.txt").splitlines()) if m)


def _places(recorded):
    """Return CPUs and NUMA node of each GPU; old drivers print no node, so it is counted."""
    found, order = [], []
    for line in _ANSI.sub("", _text(recorded / "topo.txt")).splitlines():
        cells = line.split()
        if "X" in cells and cells[0].startswith("GPU"):
            at = next(i for i, cell in enumerate(cells) if re.fullmatch(r"[\d,-]+-[\d,-]+", cell))
            order += [cells[at]] if cells[at] not in order else []
            node = cells[at + 1] if cells[at + 1 : at + 2] else order.index(cells[at])
            found.append((cells[at], int(node)))
    return found


def _hcas(recorded):
    blocks = _text(recorded / "ibstat.txt").split("CA '")[1:]
    for block in blocks:
        fields = dict(re.findall(r"^\s*([A-Z][A-Za-z ]+): (.+)$", block, re.MULTILINE))
        yield {"name": block.split("'", 1)[0], **fields}


def _write_device(path, device, where):
    _write(path / "vendor", f"0x{device['vendor']}")
    _write(path / "device", f"0x{device['device']}")
    _write(path / "class", f"0x{device['class_']}00")
    _write(path / "local_cpulist", where[0])
    _write(path / "numa_node", str(where[1]))


def _write_hca(infiniband, hca):
    path = infiniband / hca["name"]
    states = {"Active": "4: ACTIVE", "Down": "1: DOWN"}
    _write(path / "fw_ver", hca["Firmware version"])
    _write(path / "ports/1/state", states[hca["State"]])
    _write(path / "ports/1/rate", f"{hca['Rate']} Gb/sec (4X)")
    _write(path / "ports/1/link_layer", hca["Link layer"])


def _install_driver(recorded, folder):
    version = _text(recorded / "nvidia-smi.csv").splitlines()[0].split(", ")[4]
    _write(folder / "sys/module/nvidia/version", version)
    for name in ("topo.txt", "nvidia-smi.csv"):
        _write(folder / "driver" / name, _text(recorded / name))
    program = folder / "bin/nvidia-smi"
    _write(program, _NVIDIA_SMI.format(folder=folder / "driver"))
    program.chmod(0o755)


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text if text.endswith("\n") else f"{text}\n")
