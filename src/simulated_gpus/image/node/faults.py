"""What can go wrong with a simulated GPU, and how to put it right.

Each fault shows where it would on a real node: in NVML's answers, in the kernel's log, in
/sys and /proc, in what modinfo finds. Forms of the log's lines: NVIDIA, "XID Errors".
"""

from collections.abc import Mapping
from typing import Any

import bus
import driver
import kernel_log
import machine

import node

NAMES = (*machine.FAULTS, *machine.FAULTS_OF_THE_DRIVER)
# A restart sets GPUs up anew and loads what is installed; the other faults outlive it.
_MENDED_BY_RESTART = ("xid-79", "ecc-double-bit", "requires-reset", "library-mismatch")
_OTHER_BUILD = ".00.00"
# What the kernel tells of an NVSwitch besides its ids.
_SWITCH = {
    "subsystem_vendor": "10de",
    "subsystem_device": "0000",
    "revision": "a1",
    "generation": 3,
    "width": 2,
    "bars": [{"index": 0, "bytes": 1 << 25}],
}


def inject(name: str, index: int, instance: int | None = None) -> None:
    """Let a GPU fail.

    Args:
        name: One of `NAMES`.
        index: The GPU's index.
        instance: The GPU instance that the driver's message names, where MIG is on.

    Raises:
        driver.Failed: There is no such GPU, or it cannot fail like that.
    """
    found = node.simulated()
    if index not in range(len(found["gpus"])):
        raise driver.Failed(f"there is no GPU {index}: the node has {len(found['gpus'])}")
    if name == "nvlink-down" and not found["gpus"][index]["links"]:
        raise driver.Failed(f"GPU {index} has no NVLink that could fail")
    if name == "ecc-double-bit" and not found["model"]["ecc"]:
        raise driver.Failed(f"{found['model']['name']} does not count ECC errors")
    if name in machine.FAULTS_OF_THE_DRIVER:
        _break_driver(name)
        index = 0
    node.remember(sorted({*present(), (name, index)}))
    show()
    if bus.version("nvidia"):
        announce(name, index, instance)


def _break_driver(name: str) -> None:
    loaded = bus.version("nvidia")
    if name == "kernel-update":
        if driver.built() is None:
            raise driver.Failed("no module is built that a new kernel could lack")
        for source in driver.sources():
            driver.discard(source["PACKAGE_NAME"])
    elif loaded is None:
        raise driver.Failed("no driver is loaded that could differ from its libraries")
    else:
        driver.pretend_version(loaded.partition(".")[0] + _OTHER_BUILD)


def heal(name: str | None = None) -> None:
    """Put a fault right, or all."""
    names = {fault for fault, _ in present() if name in (None, fault)}
    node.remember([fault for fault in present() if fault[0] not in names])
    if "kernel-update" in names:
        for source in driver.sources():
            driver.build(source["PACKAGE_NAME"], source["PACKAGE_VERSION"])
    if "library-mismatch" in names:
        driver.pretend_version(driver.built()["version"])
    show()


def present() -> list[tuple[str, int]]:
    """Return the faults that there still are: new packages put those of the driver right."""
    built = driver.built()
    ended = {
        "kernel-update": built is not None,
        "library-mismatch": built is None or bus.version("nvidia") in (None, built["version"]),
    }
    return [fault for fault in node.faults() if not ended.get(fault[0], False)]


def forget_what_a_restart_mends() -> None:
    """Keep only the faults that a restart does not put right."""
    node.remember([fault for fault in node.faults() if fault[0] not in _MENDED_BY_RESTART])


def show() -> None:
    """Let the bus and NVML show what there is, faults included."""
    found = node.simulated()
    pci = {"vendor": "10de", **found["model"]["pci"]}
    lost = [index for name, index in node.faults() if name == "fallen-off-bus"]
    for gpu in found["gpus"]:
        bus.show(gpu["pci"], pci, gpu)
        if gpu["index"] in lost:
            bus.lose(gpu["pci"])
    for switch in found["nvswitches"]:
        bus.show(switch["pci"], {**_SWITCH, **switch}, found["gpus"][0])
    driver.tell_nvml()


def announce(name: str, index: int, instance: int | None = None) -> None:
    """Let the kernel say what its driver says of a fault."""
    found = node.simulated()
    where = found["gpus"][index]["pci"].rpartition(".")[0]
    part = f" GPU-I:{instance:02d}" if instance is not None else ""
    for number, words in _messages(name, found["model"]):
        kernel_log.say(f"NVRM: Xid (PCI:{where}{part}): {number}, {words}")


def _messages(name: str, model: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Return the Xids of a fault and what follows their number."""
    nobody = "pid='<unknown>', name=<unknown>"
    repair = {
        "rows": "Row Remapper: New row (0xb22f83) marked for remapping, reset gpu to activate.",
        "pages": "Dynamic Page Retirement: New page retired, reboot to activate (0xfc10a).",
    }
    registers = ", ".join(["0x10000"] + ["0x0"] * 6)
    messages = {
        "fallen-off-bus": [(79, f"{nobody}, GPU has fallen off the bus.")],
        "xid-79": [(79, f"{nobody}, GPU has fallen off the bus.")],
        "ecc-double-bit": [
            (48, f"{nobody}, An uncorrectable double bit error (DBE) has been detected on GPU."),
            (63, f"{nobody}, {repair.get(model['repair'])}"),
        ],
        "nvlink-down": [
            (74, f"{nobody}, NVLink: fatal error detected on link 0({registers})"),
        ],
        "requires-reset": [
            (154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"),
        ],
    }
    return messages.get(name, [])
