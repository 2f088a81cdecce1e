"""The page with sliders of `gpubed predict --page`: one HTML file that loads nothing.

All its figures are predictions by `model.predict` on a grid; the script interpolates between them
linearly in the logarithms of nodes, link, batch and images/s, and knows no formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from gpubed.core.errors import GpubedError
from gpubed.core.paths import assets
from gpubed.prediction.questions import PARTS, Questions
from gpubed.report import page

_NODES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_LINKS = (1e9, 2.5e9, 10e9, 25e9, 40e9, 100e9)
_BATCHES = (16, 32, 64, 128, 256)


def html(asked: Questions, models: Sequence[str], gpus: Sequence[str]) -> str:
    """Return the page; its sliders begin at the setup that is asked about, which must be known."""
    start = asked.row().setup
    asked = replace(asked, setup=replace(start, rate=None))
    axes: dict[str, Sequence[Any]] = {
        "model": list(dict.fromkeys([start.model, *models])),
        "gpu": list(dict.fromkeys([start.gpu, *gpus])),
        "batch": _BATCHES,
        "link_bps": _LINKS,
        "nodes": _NODES,
    }
    work = {"epochs": asked.epochs, "dataset_size": asked.dataset_size}
    cells = [_cell(asked, dict(zip(axes, one, strict=True))) for one in product(*axes.values())]
    grid = {"axes": axes, "cells": cells, "causes": list(PARTS.values()), "work": work}
    grid["start"] = {name: getattr(start, name) for name in axes}
    script = (assets() / "templates" / "report" / "forecast.js").read_text()
    own = {"start": vars(start), "axes": axes, "work": work, "grid": page.as_json(grid)}
    return page.rendered("forecast.html.j2", script, **own)


def _cell(asked: Questions, changes: dict[str, Any]) -> list[float] | None:
    """Return images/s, its bounds, efficiency, what dominates and its share; None if unknown."""
    try:
        found = asked.row(**changes).prediction
    except GpubedError:
        return None
    rates = [float(f"{rate:.4g}") for rate in (found.images_per_s, found.low, found.high)]
    share = found.parts[found.dominates] / found.step_s
    cause = list(PARTS).index(found.dominates)
    return [*rates, round(found.efficiency, 3), cause, round(share, 3)]
