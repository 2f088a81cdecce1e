"""Images per second of one GPU, from a table of measured rates with their sources.

One line t = a + c x batch (seconds of a step) passes through what all sources measured of a GPU,
a model and a precision; rates of other models come from their multiply-adds and activations. How
far measured rates are from the line widens the error.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import itertools
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from gpubed.core.errors import UsageError
from gpubed.prediction.shapes import Shape, known_as, shape

MEASURE = "give the rate of one (--rate), or measure it: gpubed bench lab imagenet-gpu"
DATA = files("gpubed.prediction").joinpath("data")
_HALF = ("amp", "fp16", "bf16")  # compute with half-precision factors; the others do not
# Standard deviations of the logarithm of a rate: frameworks and drivers of one GPU; a batch that
# was not measured, per doubling; another precision; another model (ConvMeter, ICPP 2024, says
# below 18 % with fits per GPU: without them it is more).
_ERROR, _PER_DOUBLING, _MODEL, _PRECISION = 0.10, 0.05, 0.25, 0.35
# Multiply-adds that take as long as a byte kept for the backward pass: ResNet-50 against VGG-16 in
# the table gives 174 (P100), 188 (H200) and 191 (K80); with half precision 670 (H200).
_BYTE, _HALF_BYTE = 185, 670
_HALF_SPEED_UP = 2.3  # median of the table's GPUs with tensor cores that have both


@dataclass(frozen=True)
class Rate:
    """A rate; `error` is the standard deviation of its logarithm."""

    images_per_s: float
    error: float
    source: str


@dataclass(frozen=True)
class Row:
    """A measured rate of one GPU; `limit` is 0 for noise, 1 for real images, 2 for a slow host."""

    gpu: str
    model: str
    batch: int
    half: bool
    limit: int
    source: str
    images_per_s: float


def family(gpu: str) -> str:
    """Return the model of a GPU without maker, memory and form: `V100-SXM2-32GB` is `v100`."""
    name = re.sub(r"nvidia|tesla|geforce|quadro|amd|instinct|radeon", "", gpu.lower()).strip(" -")
    found = re.match(r"(gtx |rtx )?(titan \w+|[a-z]*\d+[a-z]*)( ti| super)?", name)
    return found[0] if found else name


@cache
def published() -> tuple[dict[str, str], ...]:
    """Return the shipped rows of published scaling runs, each with its source."""
    text = gzip.decompress(DATA.joinpath("published.csv.gz").read_bytes()).decode()
    return tuple(csv.DictReader(text.splitlines()))


@cache
def table() -> tuple[Row, ...]:
    """Return what was measured on one GPU: gpubed's own points, and published rows."""
    own = csv.DictReader(DATA.joinpath("rates.csv").read_text().splitlines())
    kept: dict[tuple[str, str, int, bool, int, str], list[float]] = defaultdict(list)
    for row in own:
        half, images = row["precision"] in _HALF, float(row["images_per_s"])
        kept[row["gpu"], row["model"], int(row["batch"]), half, 0, row["source"]] = [images]
    for row in published():
        if row["n_gpus"] == "1" and row["images_per_s"] and row["batch_per_gpu"]:
            if row["grade"] == "C" or row["gpu"].startswith("("):
                continue
            name, model = family(row["gpu"]), known_as(row["model"])
            half = row["precision"].split()[0] in _HALF
            limit = 2 if "host bound" in row["notes"] else int(row["data"] != "synthetic")
            place = (name, model, int(row["batch_per_gpu"]), half, limit, row["source_ref"])
            kept[place].append(float(row["images_per_s"]))
    return tuple(Row(*place, statistics.median(each)) for place, each in kept.items())


def gpus() -> list[str]:
    """Return the GPUs with a rate."""
    return sorted({row.gpu for row in table()})


def lookup(gpu: str, name: str, model: Shape, batch: int, precision: str) -> Rate:
    """Return the rate of a GPU.

    Args:
        gpu: its name, such as `v100` or `Tesla V100-SXM2-16GB`.
        name: the model's.
        model: its shape.
        batch: images per step.
        precision: what it computes in.

    Raises:
        UsageError: The table has no rate of the GPU.
    """
    own = [row for row in table() if row.gpu == family(gpu)]
    if not own:
        alike = difflib.get_close_matches(family(gpu), gpus(), n=3, cutoff=0.3)
        told = f"near it are {', '.join(alike)}" if alike else f"it has {', '.join(gpus())}"
        hint = MEASURE.removesuffix("-gpu") if gpu == "cpu" else MEASURE
        raise UsageError(f"the table of rates has no GPU {gpu!r}; {told}", hint)
    half = precision in _HALF
    error, factor = 0.0, 1.0
    if not (rows := [row for row in own if row.half == half]):
        rows, error = own, _PRECISION
        factor = _HALF_SPEED_UP if half else 1 / _HALF_SPEED_UP
    known = known_as(name)
    if same := [row for row in rows if row.model == known]:
        rows, source = same, ""
    else:
        cost = {row.model: _cost(shape(row.model), half) for row in rows}
        own_cost = _cost(model, half)
        nearest = min(cost, key=lambda each: abs(math.log(cost[each] / own_cost)))
        rows = [row for row in rows if row.model == nearest]
        factor *= cost[nearest] / own_cost
        error, source = math.hypot(error, _MODEL), f"{nearest} by multiply-adds and activations, "
    rows = [row for row in rows if row.limit < 2] or rows
    away = min(abs(math.log2(batch / row.batch)) for row in rows)
    line, missed = _line(rows)
    rate = factor * batch / line(batch)
    closest = min(rows, key=lambda row: abs(math.log(batch / row.batch)))
    source += f"{closest.gpu}, {closest.model}, batch {closest.batch}: {closest.source}"
    return Rate(rate, math.hypot(error, max(_ERROR, missed), _PER_DOUBLING * away), source)


def _cost(model: Shape, half: bool) -> float:
    """Return the multiply-adds that an image takes as long as, its activations' traffic with it."""
    kept = sum(layer.kept_bytes for layer in model.layers)
    return model.macs + (_HALF_BYTE if half else _BYTE) * kept


def _line(rows: list[Row]) -> tuple[Callable[[int], float], float]:
    """Return the seconds of a step by batch, and how far (root mean square of logarithms) rows are.

    The line is Theil and Sen's, which a few odd sources do not move. At least half of a step grows
    with the batch, and none of it shrinks.
    """
    steps = [(row.batch, row.batch / row.images_per_s) for row in rows]
    pairs = itertools.combinations(steps, 2)
    slopes = [(after - before) / (n - m) for (m, before), (n, after) in pairs if n != m]
    each = [seconds / size for size, seconds in steps]
    slope = min(max(statistics.median(slopes or each), min(each) / 2), max(each))
    start = max(statistics.median(seconds - slope * size for size, seconds in steps), 0.0)
    missed = (math.log((start + slope * size) / seconds) for size, seconds in steps)
    return lambda batch: start + slope * batch, math.sqrt(statistics.fmean(x * x for x in missed))
