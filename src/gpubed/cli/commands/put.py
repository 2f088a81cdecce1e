"""gpubed put."""

import math
from pathlib import Path

from typer import Argument, Option

from gpubed.cli import copies
from gpubed.cli.options import ClusterName, Json, Yes, find
from gpubed.cli.ui import UI
from gpubed.core.errors import UsageError

EXAMPLE = "gpubed put lab data/flowers"
PLACE = ("Work", 52)


def command(
    name: ClusterName,
    sources: list[Path] = Argument(..., metavar="PATH…", help="Files or folders of this machine."),
    as_name: str | None = Option(None, "--as", metavar="NAME", help="Another name than its own."),
    yes: Yes = False,
    as_json: Json = False,
) -> int:
    """Copy files and folders to the cluster's datasets.

    Jobs find each at $GPUBED_DATASETS/NAME once all of it has arrived. An existing dataset is
    updated.
    """
    ui, copier = UI(as_json), copies.copier(find(name))
    if as_name is not None and len(sources) > 1:
        raise UsageError(f"--as names one PATH, and there are {len(sources)}")
    plans = (
        copier.to_put(path, path.absolute().name if as_name is None else as_name)
        for path in sources
    )
    return copies.run(ui, "put", copier, plans, yes=yes, ask_from=math.inf)
