"""The page docs/reference/prediction.md, and its plots.

`python docs/prediction.py` computes all errors again, in minutes, and keeps them in
docs/reference/prediction.json; the page is made of that file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import altair as alt

from gpubed.prediction import rates, validation
from gpubed.prediction.model import Calibration
from gpubed.report.plots import COLOURS, Figure

KEPT = Path(__file__).parent / "reference" / "prediction.json"
HEAD = """# How good predictions are

Written from `gpubed predict --validate`: published scaling runs, predicted from the rate of one GPU
by numbers that were fitted without anything that the run's publisher measured. The equations and
constants: [prediction](../concepts/prediction.md).

- *tuned*: NCCL called by Horovod or torch's DDP on two or more nodes, noise for images, link and
  transport stated, published as a scaling result. The whole rule, written before any number was
  fitted, is `subset` in `src/gpubed/prediction/validation.py`.
- *InfiniBand's rate assumed*: the same, but the source does not tell the link's rate; 100 Gbit/s
  (Slingshot: 200) stand for it.
- *untuned or not comparable*: real images, no fusion, schedulers' traces, threads that ask why it
  is slow, sums on CPUs. A predictor that knows the link alone is wrong by the factor that tuning
  is worth; the interval is that wide. TCP counts for 0.3 of what tuned TCP carries there.
- *after a probe*: the run of the same series on two nodes calibrates, larger ones are predicted.
  The three tuned runs are of one series, whose two nodes were 4 % faster than predicted and whose
  larger ones were not: too few to tell. Untuned runs gain much.

Baselines: *linear*: ranks times the rate of one GPU. *no overlap, line rate*: the backward pass,
then 2 (n - 1) / n of the gradients at the nominal rate. *p-norm*: Pollux's step time with its
exponent, start, slope and shares of the line rate fitted to the same runs as ours.

Numbers are held out, not the form of the equations, which was chosen with all runs in sight: the
slowest link of a ring, Horovod's negotiation and the worth of more TCP connections became terms
because runs asked for them. The widths of intervals, and the 0.3, were set by these errors.

Relative errors of the rate; *within*: share of runs in the interval that claims 90 %.
"""


def keep() -> None:
    """Compute the errors, and write them down with the tuned runs."""
    errors = [asdict(line) for line in validation.table()]
    points = [_kept(point) for point in validation.points(groups=["tuned", "assumed"])]
    fitted = asdict(validation.fit(validation.cases()))
    kept = {"errors": errors, "runs": points, "fitted": fitted}
    KEPT.write_text(json.dumps(kept, indent=1) + "\n")


def _kept(point: validation.Point) -> dict[str, Any]:
    run, one = point.run, point.found[validation.OURS]
    linear = run.setup.ranks * (run.setup.rate or 0)
    figures = (run.measured or 0, one.images_per_s, one.low, one.high)
    measured, predicted, low, high = (round(figure / linear, 4) for figure in figures)
    told = {"row": run.row_id, "series": run.series, "source": run.source, "group": point.group}
    shown = {"measured": measured, "predicted": predicted, "low": low, "high": high}
    kind = {"owner": validation.owner(run), "model": run.setup.model, "ranks": run.setup.ranks}
    return {**told, **kind, "transport": run.setup.transport, **shown}


def page() -> str:
    """Return the page."""
    return "\n".join([HEAD, *_page(json.loads(KEPT.read_text()))]) + "\n"


def _page(kept: dict[str, Any]) -> Iterator[str]:
    yield "| runs | method | n | mean | median | 90 % below | within |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for line in kept["errors"]:
        within = "" if line["coverage"] is None else f"{line['coverage']:.0%}"
        figures = " | ".join(f"{100 * line[key]:.1f} %" for key in ("mape", "median", "p90"))
        yield f"| {line['group']} | {line['method']} | {line['runs']} | {figures} | {within} |"
    yield "\n![Errors of four methods](../images/prediction-errors.svg)\n"
    yield "![Predicted and measured efficiency](../images/prediction-runs.svg)\n"
    yield "## Fitted numbers\n\nThe shipped ones, from all tuned runs; *before*: what was assumed,"
    yield "with its sources in `validation.py`.\n"
    yield "| number | before | shipped |\n| --- | --- | --- |"
    for name, (before, _) in (validation.PRIORS | validation.CPU_PRIORS).items():
        yield f"| `{name}` | {before:.4g} | {getattr(Calibration(), name):.4g} |"
    yield "\n## Tuned runs\n\nScaling efficiency; the row is that of the shipped table.\n"
    yield "| row | run | model | ranks | transport | measured | predicted | interval |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for run in kept["runs"]:
        yield f"| {run['row']} | {run['series']} | {run['model']} | {run['ranks']}" + (
            f" | {run['transport']} | {run['measured']:.1%} | {run['predicted']:.1%}"
            f" | {run['low']:.1%} to {run['high']:.1%} |"
        )
    yield "\n## Sources\n\nOf the shipped table (`src/gpubed/prediction/data/published.csv.gz`).\n"
    yield "| source | reference | runs |\n| --- | --- | --- |"
    sources = [(row["source"], row["source_ref"]) for row in rates.published()]
    for source, reference in dict.fromkeys(sources):
        yield f"| {source} | {reference} | {sources.count((source, reference))} |"


def pictures() -> dict[str, str]:
    """Return the plots by file name."""
    kept = json.loads(KEPT.read_text())
    return {
        "prediction-errors.svg": _errors(kept["errors"]),
        "prediction-runs.svg": _runs(kept["runs"]),
    }


def _errors(errors: list[dict[str, Any]]) -> str:
    titles = list(validation.GROUPS.values())
    rows = [line for line in errors if line["group"] in titles]
    chart = (
        alt.Chart(alt.Data(values=rows))
        .mark_bar()
        .encode(
            x=alt.X("mape:Q", title="mean relative error of the rate", axis=alt.Axis(format="%")),
            y=alt.Y("method:N", title=None, sort=None),
            row=alt.Row("group:N", title=None, sort=titles, header=alt.Header(orient="top")),
            color=alt.condition(
                alt.datum.method == validation.OURS, alt.value(COLOURS[1]), alt.value(COLOURS[6])
            ),
        )
        .properties(width=520, height=90)
    )
    return Figure("prediction-errors", "Mean errors by method and group", chart.to_dict()).svg()


def _runs(runs: list[dict[str, Any]]) -> str:
    base = alt.Chart(alt.Data(values=runs))
    axis = alt.Axis(format="%")
    scale = alt.Scale(domain=[0.45, 1.05])
    across = alt.X("measured:Q", title="measured efficiency", axis=axis, scale=scale)
    colour = alt.Color("owner:N", title=None, scale=alt.Scale(range=COLOURS[:3]))
    bars = base.mark_rule(opacity=0.4).encode(
        x=across, y=alt.Y("low:Q", scale=scale), y2="high:Q", color=colour
    )
    up = alt.Y("predicted:Q", title="predicted, 90 % interval", axis=axis, scale=scale)
    marks = base.mark_point(size=45).encode(
        x=across, y=up, color=colour, shape=alt.Shape("owner:N", legend=None)
    )
    line = [{"measured": 0.45, "predicted": 0.45}, {"measured": 1.05, "predicted": 1.05}]
    equal = alt.Chart(alt.Data(values=line)).mark_line(strokeDash=[4, 4], color="#808080")
    chart = alt.layer(equal.encode(x=across, y=up), bars, marks).properties(width=520, height=420)
    return Figure("prediction-runs", "Predicted and measured efficiency", chart.to_dict()).svg()


if __name__ == "__main__":
    keep()
