"""Converts a GPU report to a model for simulated nodes.

    python -m gpubed.hardware.recording REPORT MODEL > src/simulated_gpus/image/models/MODEL.json

The model describes the first GPU of the first node. Values that no program on a node reports (CUDA
cores, width of the memory bus, MIG's profiles) are null, to be looked up by hand. Key `board` is
that of another model of the same device, else `pcie`.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from lxml import etree

from gpubed.core.errors import GpubedError, UsageError
from gpubed.hardware.report import NodeReport, Report, read
from simulated_gpus import models

_MIB = 1 << 20


def model(report: Report, name: str) -> dict[str, Any]:
    """Return the content of a model's file; raise an error unless it has real GPUs."""
    node = report.nodes[0] if report.nodes else None
    if node is None or not node.facts.get("gpus"):
        raise GpubedError("the report has no GPU")
    if node.simulated:
        raise GpubedError(f"the report is of a simulated {node.simulated}, not of a GPU")
    try:
        parser = etree.XMLParser(resolve_entities=False, no_network=True)
        log = etree.fromstring(node.commands["nvidia-smi -q -x"].encode(), parser)
    except etree.XMLSyntaxError:
        raise GpubedError("nvidia-smi did not answer on that node") from None
    gpu = log.find("gpu")
    if gpu is None:
        raise GpubedError("nvidia-smi knew no GPU on that node")
    version = log.findtext("driver_version", "unknown")
    return {
        "model": name,
        "name": gpu.findtext("product_name"),
        "brand": gpu.findtext("product_brand"),
        "architecture": node.facts["gpus"][0]["generation"],
        "compute_capability": node.facts["gpus"][0]["compute_capability"],
        "cuda_cores": None,
        "sources": [
            {"document": f"GPU report of {report.at:%Y-%m-%d}, driver {version}", "url": None}
        ],
        "synthetic": ["GPU UUID", "serial number"],
        **_card(node),
        **_values(gpu),
        "nvlink": _nvlink(node),
        "mig": None,
    }


def _card(node: NodeReport) -> dict[str, Any]:
    device = node.pci[node.facts["gpus"][0]["pci"]]
    word = {key: str(value).removeprefix("0x") for key, value in device.items()}
    speed = re.match(r"[0-9.]+", word["max_link_speed"])
    same = (model.board for model in models().values() if model.pci.device == word["device"])
    return {
        "board": next(same, "pcie"),
        "pci": {
            "device": word["device"],
            "subsystem_vendor": word["subsystem_vendor"],
            "subsystem_device": word["subsystem_device"],
            "class": word["class"],
            "revision": word["revision"],
            "generation": _GENERATIONS.get(float(speed[0]) if speed else 0),
            "width": int(word["max_link_width"]),
            "bars": list(_bars(word["resource"])),
        },
    }


# NVLink's version by generation (NVIDIA's whitepapers).
_NVLINKS = {"Pascal": 1, "Volta": 2, "Ampere": 3, "Hopper": 4, "Blackwell": 5}
# PCI Express generation by GT/s of a lane (PCI Express Base Specification).
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}


def _bars(resource: str) -> list[dict[str, int]]:
    """Return the BARs of a device: the first six lines of its resources, without unused ones."""
    found = []
    for index, line in enumerate(resource.splitlines()[:6]):
        first, last = (int(cell, 16) for cell in line.split()[:2])
        if last:
            found.append({"index": index, "bytes": last - first + 1})
    return found


def _values(gpu: etree._Element) -> dict[str, Any]:
    """Return readings, limits and versions; the readings are taken for those of an idle GPU."""

    def number(*names: str) -> float | int | None:
        """Return the number in the first element that has one; names differ by version."""
        for name in names:
            found = re.match(r"-?[0-9.]+", gpu.findtext(name) or "")
            if found:
                value = float(found[0])
                return int(value) if value.is_integer() else value
        return None

    def word(name: str) -> str | None:
        text = gpu.findtext(name)
        return None if text in (None, "N/A") else text

    def power(name: str) -> float | int | None:
        return number(f"gpu_power_readings/{name}", f"power_readings/{name}")

    def heat(limit: str, below: str) -> float | int | None:
        """Return a temperature limit in °C, which Hopper and later report as a margin.

        `gpu_temp_tlimit` is the margin of the present temperature; the margins of limits above the
        highest temperature in use are negative (nvidia-smi's manual, "T.Limit").
        """
        absolute, now = number(f"temperature/{limit}"), number("temperature/gpu_temp")
        margin, of_limit = number("temperature/gpu_temp_tlimit"), number(f"temperature/{below}")
        if absolute is not None or now is None or margin is None or of_limit is None:
            return absolute
        return now + margin - of_limit

    ecc, rows = word("ecc_mode/current_ecc"), gpu.find("remapped_rows/remapped_row_corr")
    memory = number("fb_memory_usage/total"), number("fb_memory_usage/reserved")
    return {
        "part_number": word("gpu_part_number"),
        "vbios": word("vbios_version"),
        "inforom": {
            "image": word("inforom_version/img_version"),
            "oem": word("inforom_version/oem_object"),
            "ecc": word("inforom_version/ecc_object"),
        },
        "memory": {
            "bytes": int(memory[0] or 0) * _MIB,
            "reserved_bytes": int(memory[1] or 0) * _MIB,
            "bus_bits": None,
        },
        "clocks_mhz": {
            "graphics": {
                "idle": number("clocks/graphics_clock"),
                "application": number("applications_clocks/graphics_clock"),
                "max": number("max_clocks/graphics_clock"),
            },
            "memory": {"idle": number("clocks/mem_clock"), "max": number("max_clocks/mem_clock")},
            "video": {
                "idle": number("clocks/video_clock"),
                "max": number("max_clocks/video_clock"),
            },
        },
        "power_watts": {
            "idle": power("instant_power_draw") or power("power_draw"),
            "default": power("default_power_limit"),
            "min": power("min_power_limit"),
            "max": power("max_power_limit"),
        },
        "temperature_celsius": {
            "idle": number("temperature/gpu_temp"),
            "memory_idle": number("temperature/memory_temp"),
            "max": heat("gpu_temp_max_gpu_threshold", "gpu_temp_max_gpu_tlimit_threshold"),
            "slowdown": heat("gpu_temp_slow_threshold", "gpu_temp_slow_tlimit_threshold"),
            "shutdown": heat("gpu_temp_max_threshold", "gpu_temp_max_tlimit_threshold"),
        },
        "ecc": None if ecc is None else ecc == "Enabled",
        "repair": "rows" if rows is not None else "pages" if ecc is not None else None,
        "remap_banks": number("remapped_rows/row_remapper_histogram/row_remapper_histogram_max"),
        "fan": word("fan_speed") is not None,
        "gsp": word("gsp_firmware_version") is not None,
    }


def _nvlink(node: NodeReport) -> dict[str, int | None] | None:
    """Return the NVLinks of the first GPU, which have lines such as `Link 0: 26.562 GB/s`."""
    first = node.commands["nvidia-smi nvlink -s"].split("\nGPU 1")[0]
    speeds = [float(text) for text in re.findall(r"Link \d+: ([0-9.]+) GB/s", first)]
    if not speeds:
        return None
    version = _NVLINKS.get(node.facts["gpus"][0]["generation"])
    return {"version": version, "links": len(speeds), "megabytes_per_second": int(speeds[0] * 1000)}


def main(arguments: list[str]) -> None:
    """Print the model of a report."""
    if len(arguments) != 2:
        raise UsageError("python -m gpubed.hardware.recording REPORT MODEL")
    found = model(read(Path(arguments[0])), arguments[1])
    sys.stdout.write(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except GpubedError as error:
        sys.exit(f"{error}")
