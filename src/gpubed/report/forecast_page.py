"""The page with sliders of `gpubed predict --page`: one HTML file that loads nothing.

All its figures are predictions by `model.predict` on a grid; the script interpolates between them
linearly in the logarithms of nodes, link, batch and images/s, and knows no formula.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from markupsafe import Markup

from gpubed.core.errors import GpubedError
from gpubed.core.paths import assets
from gpubed.prediction.questions import PARTS, Questions
from gpubed.report import page

_NODES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_LINKS = (1e9, 2.5e9, 10e9, 25e9, 40e9, 100e9)
_BATCHES = (16, 32, 64, 128, 256)


def html(asked: Questions, models: Sequence[str], gpus: Sequence[str]) -> str:
    """Return the page; its sliders begin at the setup that is asked about.

    Raises:
        UsageError: The model or the GPU of that setup is not known.
    """
    start = asked.row().setup
    asked = replace(asked, setup=replace(start, rate=None))
    axes: dict[str, Sequence[Any]] = {
        "model": list(dict.fromkeys([start.model, *models])),
        "gpu": list(dict.fromkeys([start.gpu, *gpus])),
        "batch": _BATCHES,
        "link_bps": _LINKS,
        "nodes": _NODES,
    }
    settings = (dict(zip(axes, values, strict=True)) for values in product(*axes.values()))
    work = {"epochs": asked.epochs, "dataset_size": asked.dataset_size}
    cells = [_cell(asked, one) for one in settings]
    grid = {"axes": axes, "cells": cells, "causes": list(PARTS.values()), "work": work}
    script = (assets() / "templates" / "report" / "forecast.js").read_text()
    sliders = [
        ("nodes", "Nodes", min(start.nodes, _NODES[-1]), _NODES[0], _NODES[-1], 1),
        # Positions are powers of two over the smallest value.
        ("link_bps", "Link", *_powers(start.link_bps, _LINKS)),
        ("batch", "Batch per rank", *_powers(start.batch, _BATCHES)),
    ]
    return page.template("forecast.html.j2").render(
        start=vars(start),
        axes=axes,
        work=work,
        sliders=sliders,
        grid=page.as_json(grid),
        script=Markup(script),  # noqa: S704  # gpubed's own
        digest=page.digest(script),
    )


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


def _powers(value: float, axis: Sequence[float]) -> tuple[float, float, float, float]:
    """Return a logarithmic slider's value, bounds and step."""
    most = math.log2(axis[-1] / axis[0])
    place = math.log2(max(value, axis[0]) / axis[0])
    return round(min(place, most), 3), 0, round(most, 3), 0.001
