"""Records a run's GPULab jobs on disk, as the service lists only one page of jobs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from shlex import quote

from pydantic import BaseModel, ConfigDict, Field

from gpubed.core import files, reading

NAME = "jobs.json"  # in a run's folder


class Row(BaseModel):
    """One job of a run; `id` is empty before an answer, `open` None in older records."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    id: str = Field("", pattern=r"^([0-9a-fA-F-]{36})?$")
    open: bool | None = None

    @property
    def may_run(self) -> bool:
        """Whether GPULab may still run it."""
        return bool(self.id) if self.open is None else self.open


def write(folder: Path, rows: Iterable[Row]) -> None:
    """Write down the jobs of a run."""
    text = json.dumps([row.model_dump() for row in rows], indent=2)
    files.write(folder / NAME, text.encode() + b"\n")


def left(runs: Path) -> Iterator[tuple[Path, Row]]:
    """Yield the jobs of all runs that GPULab may still run, each with the file that says so."""
    for path in sorted(runs.glob(f"*/{NAME}")):
        fix = f"cancel what runs at GPULab by hand, then: rm {quote(str(path))}"
        for row in reading.file(path, fix).json(list[Row]):
            if row.may_run:
                yield path, row
