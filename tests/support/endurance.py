"""What trainings and clusters outlived: kept in a file, shown as a page."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support import kept

KEPT = Path(__file__).parents[1] / "e2e" / "endurance.json"
HEAD = """# What trainings and clusters outlive

`make test-endurance` runs all this on three nodes of this project's local backend, which share the
processors of one machine. Faults and their moments are drawn by a seed. Each part is a test, which
fails where it does not hold what is said here.

"""


def known(part: str, otherwise: Any) -> Any:
    """Return what was kept of a part before."""
    return json.loads(KEPT.read_text()).get(part, otherwise) if KEPT.exists() else otherwise


def page() -> str:
    sections = {"faults": _faults, "accuracy": _accuracy, "overhead": _overhead, "watch": _watch}
    return kept.page(KEPT, HEAD, sections)


def _faults(known: dict[str, Any]) -> Iterator[str]:
    found = known["faults"]
    played = found["played"]
    plain = statistics.median(found["undisturbed_s"])
    yield f"## {len(played)} faults\n"
    yield (
        f"As many `--elastic` trainings of {found['steps']} steps, a checkpoint every "
        f"{found['every']}, and one fault in each, at any moment from its start on. All of them "
        f"finished. Undisturbed, one takes {plain:.0f} s; what a fault costs is the time beyond "
        "that, with the end of the fault (a node that is off for 20 s is).\n"
    )
    yield "| fault | trainings | seconds lost: least | median | most | steps repeated: most |"
    yield "| --- " * 6 + "|"
    for kind in sorted({one["fault"] for one in played}):
        these = [one for one in played if one["fault"] == kind]
        lost = [one["seconds"] - plain for one in these]
        cells = [kind, len(these)]
        cells += [f"{figure(lost):.0f} s" for figure in (min, statistics.median, max)]
        cells.append(max(one["repeated"] for one in these))
        yield f"| {' | '.join(map(str, cells))} |"
    yield ""


def _accuracy(known: dict[str, Any]) -> Iterator[str]:
    found = known["accuracy"]
    yield "## The same accuracy\n"
    rows = {name: found[name] for name in ("undisturbed", "disturbed")}
    yield (
        f"{len(found['undisturbed'])} seeds, each trained undisturbed, and again while a worker is "
        "lost and replaced and the head's JupyterLab ends. Share of held-out images that are "
        "recognised. On two nodes a step has fewer images, so that a disturbed one makes more of "
        "them.\n"
    )
    yield "| | mean | standard deviation | least | most |"
    yield "| --- | --- | --- | --- | --- |"
    for name, values in rows.items():
        figures = (statistics.mean(values), statistics.stdev(values), min(values), max(values))
        yield f"| {name} | {' | '.join(f'{value:.4f}' for value in figures)} |"
    yield ""


def _overhead(known: dict[str, Any]) -> Iterator[str]:
    found = known["overhead"]
    yield "## What it costs when nothing happens\n"
    yield (
        f"The same training of {found['steps']} steps, {found['runs']} times each way, in turns; "
        f"a checkpoint every {found['every']} steps. Time of the whole run over that of the plain "
        "one, with the 95 % interval of the mean ratio:\n"
    )
    yield "| | ratio | 95 % interval |"
    yield "| --- | --- | --- |"
    for name, one in found["ratios"].items():
        yield f"| {name} | {one['value']:.3f} | {one['low']:.3f} to {one['high']:.3f} |"
    yield ""


def _watch(known: dict[str, Any]) -> Iterator[str]:
    found = known["watch"]
    yield "## A watch under faults\n"
    minutes = found["seconds"] / 60
    counts = ", ".join(f"{n} x {what}" for what, n in sorted(Counter(found["faults"]).items()))
    yield (
        f"`gpubed watch` for {minutes:.0f} minutes, a fault every few minutes: {counts}. It "
        f"repaired {found['repairs']} times; repairs that failed, and were begun again: "
        f"{found.get('failed', 0)}. At the end all nodes were ready and the same, files on the "
        "shared storage and on a node's own disk were as they had been, and each line of the log "
        "had a reason.\n"
    )
