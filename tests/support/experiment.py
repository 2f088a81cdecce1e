"""What the experiment on this machine found: kept in a file, shown as a page.

The file is a report of `gpubed report` with the metrics that the page needs, so that
`gpubed bench CLUSTER --repeat` takes it, and what was measured beside the matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support import kept

KEPT = Path(__file__).parents[1] / "e2e" / "experiment.json"
PICTURE = Path(__file__).parents[2] / "docs" / "images" / "report.png"
# What TCP brings across an Ethernet link, of its rate (docs/adr/0005-wire-rate.md).
GOODPUT = 0.94
PARTS = ("data_s", "compute_s", "exposed_communication_s")
METRICS = ("images_per_s", "step_s", *PARTS, "gradient_bytes")
HEAD = """# An experiment, from the matrix to its repetition

`make test-experiment` runs it on three nodes of this project's local backend. ResNet-18 is
trained on images of handwritten digits, 32 x 32 pixels, that jobs `prepare` and `stage` made into
shards and brought to each node. It is a rehearsal: all nodes share the processors of one machine.

Each part below is a test's: it fails where the figures are not as it says.

"""


def needed(report: dict[str, Any]) -> dict[str, Any]:
    """Return of a report what the page and a repetition need."""
    groups = [
        {**group, "metrics": {k: v for k, v in group["metrics"].items() if k in METRICS}}
        for group in report["groups"]
    ]
    names = ("schema", "campaign", "simulated", "efficiency", "limits")
    return {"groups": groups, **{name: report[name] for name in names}}


def ring_s(nodes: int, gradient_bytes: float, rate_bps: float) -> float:
    """Return the seconds of a ring allreduce over links of that rate.

    2(N-1)/N x S is what each rank sends of S bytes (Patarasuk and Yuan, J. Parallel Distrib.
    Comput. 69 (2009), 117-124).
    """
    return 2 * (nodes - 1) / nodes * gradient_bytes * 8 / (GOODPUT * rate_bps)


def page() -> str:
    """Return what is kept, as a page."""
    sections = {
        "groups": _matrix,
        "rings": _rings,
        "frameworks": _frameworks,
        "repeated": _repeated,
    }
    return kept.page(KEPT, HEAD, sections)


def _matrix(known: dict[str, Any]) -> Iterator[str]:
    """Give a row for each point of the matrix."""
    efficiency = {one["id"]: one["value"] for one in known["efficiency"]}
    yield "## The matrix, killed twice\n"
    yield (
        "Each point three times, in random order, 95 % intervals. `gpubed bench` was stopped with "
        "Ctrl-C and killed with `kill -9` on the way, and went on: no run twice, none lost, and "
        "what was kept before stayed as it was.\n"
    )
    yield (
        "| nodes | batch | link | images/s | efficiency | step | data | compute "
        "| exposed communication |"
    )
    yield "| --- " * 9 + "|"
    for group in sorted(known["groups"], key=lambda group: list(group["settings"].values())):
        chosen, metrics = group["settings"], group["metrics"]
        cells = [chosen["nodes"], chosen["batch_size"], chosen["rate"]]
        cells.append(f"{_mean(metrics['images_per_s'])} ± {_width(metrics['images_per_s'])}")
        cells.append(f"{100 * efficiency[group['id']]:.0f} %")
        cells += [f"{metrics[name]['mean']:.3f} s" for name in ("step_s", *PARTS)]
        yield f"| {' | '.join(map(str, cells))} |"
    yield ""
    limits = {one["limit"] for one in known["limits"]}
    yield f"What limits, as `gpubed report` says: {', '.join(sorted(limits))}.\n"
    if PICTURE.exists():
        yield f"![The report, in a browser](../images/{PICTURE.name})\n"


def _rings(known: dict[str, Any]) -> Iterator[str]:
    yield "## Communication that nothing hides\n"
    yield (
        "With `overlap=false`, gradients are averaged after the backward pass. Then "
        "`exposed_communication_s` is what 2(N-1)/N x S bytes take at 94 % of the link's rate, "
        "within 15 %.\n"
    )
    yield "| nodes | link | exposed communication | by the formula | ratio |"
    yield "| --- | --- | --- | --- | --- |"
    for one in known["rings"]:
        yield (
            f"| {one['nodes']} | {one['rate']} | {one['measured_s']:.3f} s | {one['ring_s']:.3f} s "
            f"| {one['measured_s'] / one['ring_s']:.2f} |"
        )
    yield ""


def _frameworks(known: dict[str, Any]) -> Iterator[str]:
    yield "## Horovod against DDP\n"
    one = known["frameworks"]
    ratio = one["ratio"]
    yield (
        f"Both on the same {one['nodes']} nodes with the same images, Gloo, links of "
        f"{one['rate']}, in random order, {one['runs']} runs each: Horovod trains "
        f"{ratio['value']:.3f} x as many images per second as DDP "
        f"(95 % interval {ratio['low']:.3f} to {ratio['high']:.3f}).\n"
    )


def _repeated(known: dict[str, Any]) -> Iterator[str]:
    yield "## Repeated on another cluster\n"
    yield (
        "`gpubed bench other --repeat report.json` on a cluster made anew. A difference counts "
        "where its p is 0.05 or less, corrected for the number of points (Holm).\n"
    )
    yield "| point | before | now | ratio | 95 % interval | verdict |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for one in known["repeated"]:
        yield (
            f"| {one['id']} | {one['before']:.1f} | {one['now']:.1f} | {one['ratio']:.3f} "
            f"| {one['low']:.3f} to {one['high']:.3f} | {one['verdict']} |"
        )
    yield ""


def _mean(summary: dict[str, Any]) -> str:
    return f"{summary['mean']:.1f}"


def _width(summary: dict[str, Any]) -> str:
    return f"{summary['half_width']:.1f}" if summary.get("half_width") is not None else "?"
