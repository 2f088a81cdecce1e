"""Checks the GPUs with `nvidia-smi`; a value that cannot be parsed is reported as a problem."""

import platform
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gpubed_health import command

MODULE = Path("/sys/module/nvidia")
MODULES = Path("/lib/modules") / platform.release()
# Names of fields in newer drivers (events) and in older ones (throttling).
REASONS = ("clocks_event_reasons", "clocks_throttle_reasons")
SLOWED = {
    "hw_slowdown": "by its hardware",
    "hw_thermal_slowdown": "since it is too hot",
    "hw_power_brake_slowdown": "by its power supply's brake",
}
FIELDS = (
    "index",
    "pci.bus_id",
    "name",
    "ecc.mode.current",
    "ecc.errors.uncorrected.volatile.total",
    "retired_pages.pending",
)
NO_SUCH_FIELD = "is not a valid field to query"
LINKS_OF = re.compile(r"^GPU (\d+): .*\(UUID: (\S+)\)\n((?:[ \t]+.*\n?|\n)*)", re.MULTILINE)
LINK_UP = re.compile(r"Link \d+: [\d.]+ GB/s")
RECOVERIES = re.compile(r"Recovery Errors: (\d+)")
ABSENT = {"N/A", "[N/A]", "Not Supported", "[Not Supported]"}
# Models that count memory errors, and models that replace memory rows (NVIDIA, "GPU Memory
# Error Management").
REMAPS = re.compile(r"\b(A30|A100|A800|H20|H100|H200|H800|GH200|B100|B200|B300|GB200|GB300)\b")
COUNTS = re.compile(rf"{REMAPS.pattern}|\b(K80|P4|P40|P100|V100|T4|A2|A10|A16|A40|L4|L20|L40S?)\b")
# Debian's packages name the module by branch.
MODULE_NAMES = (
    "nvidia",
    "nvidia-current",
    "nvidia-current-open",
    "nvidia-tesla-470",
    "nvidia-tesla-535",
)


def driver(expected: dict[str, Any], _memory: dict[str, Any]) -> Iterator[str]:
    """The driver's kernel module is loaded, and will be after a restart."""
    if not expected["gpus"]:
        return
    if not MODULE.exists():
        yield (
            "the NVIDIA kernel module is not loaded: see 'dkms status' whether it was built for"
            " this kernel, then 'modprobe nvidia'"
        )
    # Containers use the modules of their host, and lack the modules' files.
    elif MODULES.is_dir() and not any(map(_installed, MODULE_NAMES)):
        yield (
            f"no NVIDIA kernel module is installed in {MODULES} any more: after a restart the node"
            " would have no GPU; see 'dkms status'"
        )


def _installed(name: str) -> bool:
    return command.run("modinfo", "--field", "version", name)[0] != 1


def gpus(expected: dict[str, Any], memory: dict[str, Any]) -> Iterator[str]:
    """All GPUs answer with figures, and none is broken, slowed down or has lost a link."""
    if not expected["gpus"] or not MODULE.exists():
        return
    code, text = _ask()
    if code:
        yield f"nvidia-smi fails: {' '.join(text.split()) or code}{_remedy(text)}"
        return
    rows, others = _rows(text, len(FIELDS) + len(SLOWED))
    yield from (f"nvidia-smi says: {line}" for line in others)
    if len(rows) < expected["gpus"]:
        yield f"{len(rows)} GPUs answer, {expected['gpus']} are expected"
    found = [dict(zip((*FIELDS, *SLOWED), row, strict=True)) for row in rows]
    cut, actions = _cut(), _actions()
    for index in [] if expected.get("mig") else sorted(cut):
        off = f"sudo nvidia-smi -i {index} -mig 0"
        yield f"GPU {index} has MIG on, so that nothing can use it whole: {off}"
    # With contained errors (Xid 94), GPUs stay in use unless the driver asks for an action.
    content = {gpu["pci.bus_id"] for gpu in found if actions.get(gpu["index"]) == "None"}
    for gpu in found:
        yield from _judge(gpu, cut, content)
    yield from _remapped(content)
    for index, action in actions.items():
        if action not in ("None", *ABSENT):
            yield f"GPU {index} needs: {action} (gpu_recovery_action)"
    yield from _links(memory)


def _ask() -> tuple[int, str]:
    for prefix in REASONS:
        fields = [*FIELDS, *(f"{prefix}.{reason}" for reason in SLOWED)]
        code, text = _query("query-gpu", fields)
        if NO_SUCH_FIELD not in text:
            break
    return code, text


def _query(what: str, fields: Iterable[str]) -> tuple[int, str]:
    return command.run(
        "nvidia-smi", f"--{what}={','.join(fields)}", "--format=csv,noheader,nounits"
    )


def _remedy(text: str) -> str:
    if "version mismatch" in text:
        version = MODULE / "version"
        loaded = version.read_text().strip() if version.exists() else "of another version"
        return f" (the module that is loaded is {loaded}: restart the machine)"
    return ""


def _rows(text: str, width: int) -> tuple[list[list[str]], list[str]]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    rows = [[cell.strip() for cell in line.split(",")] for line in lines]
    others = [line for line, cells in zip(lines, rows, strict=True) if len(cells) != width]
    return [cells for cells in rows if len(cells) == width], others


def _cut() -> set[str]:
    """Return the GPUs with MIG switched on; drivers before 450 lack the field."""
    code, text = _query("query-gpu", ("index", "mig.mode.current"))
    return {index for index, mode in _rows(text, 2)[0] if mode == "Enabled"} if code == 0 else set()


def _judge(gpu: dict[str, str], cut: set[str], content: set[str]) -> Iterator[str]:
    name = f"GPU {gpu['index']} ({gpu['pci.bus_id']})"
    mode, ecc = gpu["ecc.mode.current"], gpu["ecc.errors.uncorrected.volatile.total"]
    pending = gpu["retired_pages.pending"]
    counts = COUNTS.search(gpu["name"]) is not None and gpu["index"] not in cut
    answers = [
        (mode, mode in ("Enabled", "Disabled") or (mode in ABSENT and not counts)),
        (ecc, ecc.isdigit() or (ecc in ABSENT and (mode == "Disabled" or not counts))),
        (pending, pending in ("Yes", "No", *ABSENT)),
        *((gpu[reason], gpu[reason] in ("Active", "Not Active", *ABSENT)) for reason in SLOWED),
    ]
    for cell in dict.fromkeys(cell for cell, right in answers if not right):
        yield f"{name} answers {cell} instead of figures"
    reset = gpu["pci.bus_id"] not in content
    if reset and ecc.isdigit() and int(ecc):
        yield f"{name} has {ecc} uncorrectable ECC errors: reset it, replace it if they come back"
    if reset and pending == "Yes":
        yield f"{name} waits for a reset to retire pages of its memory"
    for reason, words in SLOWED.items():
        if gpu[reason] == "Active":
            yield f"{name} is slowed down {words} ({reason})"


def _remapped(content: set[str]) -> Iterator[str]:
    fields = ("gpu_bus_id", "gpu_name", "remapped_rows.pending", "remapped_rows.failure")
    code, text = _query("query-remapped-rows", fields)
    rows, others = _rows(text, len(fields))
    if code or others:
        yield f"nvidia-smi does not tell of remapped rows: {' '.join(text.split()) or code}"
    for bus, model, pending, failure in rows:
        cells = {pending, failure} - {"0", "1", "Yes", "No"}
        for cell in sorted(cells if REMAPS.search(model) else cells - ABSENT):
            yield f"GPU {bus} answers {cell} instead of its remapped rows"
        if pending in ("1", "Yes") and bus not in content:
            yield f"GPU {bus} waits for a reset to replace rows of its memory"
        if failure in ("1", "Yes"):
            yield f"GPU {bus} has no rows left to remap: replace it"


def _actions() -> dict[str, str]:
    """Return the action that the driver asks for, by GPU; drivers before 570 lack the field."""
    code, text = _query("query-gpu", ("index", "gpu_recovery_action"))
    return dict(_rows(text, 2)[0]) if code == 0 else {}


def _links(memory: dict[str, Any]) -> Iterator[str]:
    _, text = command.run("nvidia-smi", "nvlink", "--status")
    _, errors = command.run("nvidia-smi", "nvlink", "--errorcounters")
    known = memory.setdefault("links", {})
    for gpu, uuid, lines in _by_gpu(text):
        up = len(LINK_UP.findall(lines))
        known[uuid] = max(up, known.get(uuid, 0))
        if up < known[uuid]:
            yield f"GPU {gpu} has {up} of {known[uuid]} NVLinks up"
    for gpu, _, lines in _by_gpu(errors):
        if count := sum(map(int, RECOVERIES.findall(lines))):
            yield f"GPU {gpu} had {count} NVLink errors that it recovered from: reset it"


def _by_gpu(text: str) -> Iterator[tuple[str, str, str]]:
    return ((m[1], m[2], m[3]) for m in LINKS_OF.finditer(text))
