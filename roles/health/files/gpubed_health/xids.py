"""Looks for Xids: errors of GPUs that the driver writes to the kernel's log.

Which Xid means what, and what is to be done, is NVIDIA's word: "Xid Catalog",
https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, column
"Resolution Bucket (Immediate Action)", of drivers R580 to R590. NVSwitches up to Hopper's
have numbers of their own (SXid), and say themselves which are fatal: "Fabric Manager User
Guide", https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/, SXid errors.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from gpubed_health import command

# Repairs by bucket. Xids in other buckets (RESTART_APP, IGNORE, WORKFLOW_XID_45, CONTACT_SUPPORT)
# concern the program that ran, or need nothing: the node stays in use.
REMEDIES = {
    "RESET_GPU": "reset the GPU or restart the machine",
    "RESTART_BM": "switch the machine off and on",
    "RESTART_VM": "restart the machine",
    "CHECK_MECHANICALS": "look at the GPU's power cables",
    "WORKFLOW_XID_48": "reset the GPU, replace it if it comes back",
    "WORKFLOW_NVLINK_ERR": "reset the GPU, look at its NVLinks if it comes back",
    "WORKFLOW_NVLINK5_ERR": "reset the GPU, look at its NVLinks if it comes back",
}
# Xids with a repair, and other frequent ones.
CATALOG = {
    13: ("RESTART_APP", "graphics engine exception"),
    31: ("RESTART_APP", "GPU memory page fault"),
    32: ("RESTART_APP", "corrupted push buffer stream"),
    43: ("IGNORE", "GPU stopped processing"),
    45: ("WORKFLOW_XID_45", "preemptive cleanup after an earlier error"),
    46: ("RESET_GPU", "GPU stopped processing"),
    48: ("WORKFLOW_XID_48", "double-bit ECC error"),
    54: ("CHECK_MECHANICALS", "auxiliary power is not connected"),
    62: ("RESET_GPU", "internal micro-controller halt"),
    63: ("IGNORE", "row of memory remapped"),
    64: ("RESET_GPU", "row of memory could not be remapped"),
    68: ("RESTART_APP", "video decoder exception"),
    69: ("RESTART_APP", "graphics engine class error"),
    74: ("WORKFLOW_NVLINK_ERR", "NVLink error"),
    79: ("RESTART_BM", "GPU has fallen off the bus"),
    92: ("IGNORE", "many single-bit ECC errors"),
    94: ("RESTART_APP", "contained memory error"),
    95: ("RESET_GPU", "uncontained memory error"),
    109: ("RESET_GPU", "context switch timeout"),
    110: ("RESET_GPU", "security fault"),
    119: ("RESET_GPU", "GSP does not answer"),
    120: ("RESET_GPU", "GSP error"),
    121: ("IGNORE", "C2C link error"),
    136: ("RESET_GPU", "link training failed"),
    137: ("IGNORE", "NVLink privilege error"),
    140: ("RESET_GPU", "unrecovered ECC error"),
    143: ("RESET_GPU", "GPU initialization error"),
    144: ("WORKFLOW_NVLINK5_ERR", "NVLink SAW error"),
    145: ("WORKFLOW_NVLINK5_ERR", "NVLink RLW error"),
    146: ("WORKFLOW_NVLINK5_ERR", "NVLink TLW error"),
    147: ("WORKFLOW_NVLINK5_ERR", "NVLink TREX error"),
    148: ("WORKFLOW_NVLINK5_ERR", "NVLink NVLPW_CTRL error"),
    149: ("WORKFLOW_NVLINK5_ERR", "NVLink NETIR error"),
    150: ("WORKFLOW_NVLINK5_ERR", "NVLink MSE error"),
    151: ("RESTART_VM", "key rotation error"),
    154: ("XID_154", "recovery action changed"),
    155: ("RESET_GPU", "NVLink error that software defines"),
    156: ("RESET_GPU", "resource retired"),
    157: ("IGNORE", "resource could not be retired"),
    158: ("RESET_GPU", "fatal timeout"),
}
# Only at the start of a line, as the kernel also logs names that users gave to files.
_SAID = r"^(?P<time>\d+(?:\.\d+)?) \S+ kernel: "
# `PCI:0000:3b:00`, with MIG `PCI:0000:3b:00 GPU-I:01`, before Volta's drivers without `PCI:`.
LINE = re.compile(
    _SAID + r"NVRM: Xid \((?:PCI:)?(?P<gpu>[^)]+)\): (?P<xid>\d+)(?P<text>.*)$",
    re.MULTILINE,
)
# `nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion Link ...`; the
# two lines that follow each of these hold figures.
SWITCH = re.compile(
    _SAID + r"nvidia-nvswitch\d+: SXid \((?:PCI:)?(?P<switch>[^)]+)\): "
    r"(?P<number>\d+), Fatal, (?P<text>.*)$",
    re.MULTILINE,
)
SWITCH_REMEDY = "restart the machine, which resets all GPUs and NVSwitches"
NEEDED = re.compile(r" to 0x[0-9a-f]+ \((?P<action>[^)]+)\)")
JOURNAL = ("journalctl", "--dmesg", "--boot", "--no-pager", "--quiet", "--output=short-unix")
ANYTHING = ("journalctl", "--boot", "--no-pager", "--quiet", "--lines=1")
# Seconds after boot from which the kernel's log cannot be empty.
EARLY_S = 60


class Xid(NamedTuple):
    """An Xid of the log; `action` is the repair, empty if the node stays in use."""

    time: float
    gpu: str
    number: int
    meaning: str
    action: str

    def __str__(self) -> str:
        """The meaning and the repair, as a sentence."""
        return f"GPU {self.gpu} reported Xid {self.number} ({self.meaning}): {self.action}"


def xids(expected: dict[str, Any], memory: dict[str, Any]) -> Iterator[str]:
    """The kernel reported no broken GPU or NVSwitch since boot and the last requalification."""
    if not expected["gpus"]:
        return
    code, text = command.run(*JOURNAL)
    if code or (not text and (text := _why_empty())):
        why = " ".join(text.split())
        yield f"the kernel's log cannot be read, so Xids are not known: {why} ({' '.join(JOURNAL)})"
        return
    since = memory.get("requalified", 0)
    told = [xid for xid in read(text) if xid.time > since]
    yield from dict.fromkeys(str(xid) for xid in told if xid.action)
    fatal = [line for line in SWITCH.finditer(text) if float(line["time"]) > since]
    yield from dict.fromkeys(
        f"NVSwitch {line['switch']} reported SXid {line['number']} ({line['text']}):"
        f" {SWITCH_REMEDY}"
        for line in fatal
    )


def _why_empty() -> str:
    """Return why the log has no message of the kernel; empty if old messages were rotated away.

    Who may read the journal finds other messages in it. Where those of the boot's
    beginning are still there, the kernel's never reached it.
    """
    if not command.run(*ANYTHING)[1]:
        return "the journal has no message of this boot"
    early = f"--until=@{started() + EARLY_S:.0f}"
    return "no message of the kernel reaches it" if command.run(*ANYTHING, early)[1] else ""


def started() -> float:
    """Return when this machine or container started, in seconds since 1970 (proc(5))."""
    ticks = int(Path("/proc/1/stat").read_text().rpartition(")")[2].split()[19])
    lines = Path("/proc/stat").read_text().splitlines()
    booted = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
    return booted + ticks / os.sysconf("SC_CLK_TCK")


def read(log: str) -> list[Xid]:
    """Return all Xids of a log; of each GPU's Xids 154, the last one counts."""
    lines = list(LINE.finditer(log))
    last = {line["gpu"]: line for line in lines if line["xid"] == "154" and NEEDED.search(line[0])}
    return [
        _judged(line)
        for line in lines
        if line["xid"] != "154" or last.get(line["gpu"], line) is line
    ]


def _judged(line: re.Match[str]) -> Xid:
    number = int(line["xid"])
    bucket, meaning = CATALOG.get(number, ("", ""))
    action = REMEDIES.get(bucket, "")
    # NVLink 5 reports corrected errors with the same number.
    if bucket == "WORKFLOW_NVLINK5_ERR" and re.search(r"\bnon-?fatal\b", line["text"], re.I):
        action = ""
    # Xid 154 has the GPU's repair in its text.
    if bucket == "XID_154" and (said := NEEDED.search(line["text"])):
        action = said["action"] if said["action"] != "None" else ""
    return Xid(float(line["time"]), line["gpu"], number, meaning, action)
