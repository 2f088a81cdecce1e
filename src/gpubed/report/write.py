"""Writes the files of a report."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

from pydantic import Field

from gpubed.campaigns.records import Model
from gpubed.core import files, reading
from gpubed.core.errors import UsageError, unwritable
from gpubed.core.files import without_nan
from gpubed.report import page, plots, summary, tables
from gpubed.report.analysis import Analysis
from gpubed.report.read import Measured

SCHEMA = "gpubed/report/1"
PAGE, DATA, POINTS, FIGURES = "report.html", "report.json", "points.csv", "figures"
_ELSEWHERE = "gpubed report CLUSTER --out FOLDER with a folder that is new"


class _Written(Model):
    contract: Literal["gpubed/report/1"] = Field(alias="schema")
    campaign: dict[str, Any]
    figures: tuple[Annotated[str, Field(pattern=r"^figures/[A-Za-z0-9_-]+\.svg$")], ...] = ()


def write(analysis: Analysis, folder: Path) -> tuple[list[Path], dict[str, Any]]:
    """Write a report, replacing one of the same campaign.

    Returns:
        The files, the page first; and the contents of `report.json`.
    """
    before = _require_ours(folder, analysis.measured)
    drawn = {figure: figure.svg() for figure in plots.drawn(analysis)}
    figures = {f"{FIGURES}/{figure.name}.svg": svg for figure, svg in drawn.items()}
    document = {
        "schema": SCHEMA,
        "campaign": analysis.measured.document,
        "environments": [
            {"settings": {analysis.measured.factor: part.label}, "campaign": part.document}
            for part in analysis.measured.parts
        ],
        "findings": summary.told(analysis),
        **analysis.document(),
        "figures": list(figures),
    }
    contents = {
        PAGE: page.html(analysis, drawn),
        DATA: json.dumps(without_nan(document), indent=2, allow_nan=False) + "\n",
        POINTS: tables.points_csv(analysis.measured),
        **figures,
    }
    try:
        return _put(folder, contents, set(before) - set(figures)), document
    except OSError as error:
        raise unwritable(error, folder) from None


def _put(folder: Path, contents: Mapping[str, str], former: Iterable[str]) -> list[Path]:
    """Write all files to a draft, then replace those of the earlier report.

    If a file cannot be written, as on a full disk, the earlier report stays as it was.

    Args:
        former: Figures of the earlier report to remove, as there are no data for them now.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".draft-", dir=folder) as made:
        draft = Path(made)
        for name, content in contents.items():
            for inside in (draft, folder):
                (inside / name).parent.mkdir(exist_ok=True)
            files.write(draft / name, content.encode("utf-8", errors="replace"))
        for name in former:
            (folder / name).unlink(missing_ok=True)
        # The page comes last: once it is new, all other files are.
        for name in reversed(list(contents)):
            (draft / name).replace(folder / name)
    return [folder / name for name in contents]


def _require_ours(folder: Path, measured: Measured) -> Sequence[str]:
    above = next(path for path in (folder, *folder.parents) if path.exists())
    if not above.is_dir():
        raise UsageError(f"{above} is no folder", _ELSEWHERE)
    there = [name for name in (PAGE, DATA, POINTS, FIGURES) if (folder / name).exists()]
    if not there:
        return ()
    try:
        found = reading.file(folder / DATA).json(_Written)
    except reading.Unreadable:
        found = None
    same = ("name", "uuid", "started")
    if not found or any(found.campaign.get(k) != measured.document.get(k) for k in same):
        raise UsageError(
            f"{folder} has {', '.join(there)} of another report than that of campaign "
            f"{measured.campaign.name}",
            _ELSEWHERE,
        )
    return found.figures
