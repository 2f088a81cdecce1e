"""gpubed get."""

from pathlib import Path

from typer import Argument, Option

from gpubed.cli import copies
from gpubed.cli.options import ClusterName, Json, Yes, find
from gpubed.cli.ui import UI
from gpubed.core import files

EXAMPLE = "gpubed get lab checkpoints/flowers --to ~/results"
PLACE = ("Work", 54)
_ASK_FROM = 10 * 2**30  # bytes


def command(
    name: ClusterName,
    paths: list[str] = Argument(
        ..., metavar="PATH…", help="On the shared storage: datasets/flowers."
    ),
    folder: Path = Option(Path(), "--to", metavar="FOLDER", help="Where they go on this machine."),
    yes: Yes = False,
    as_json: Json = False,
) -> int:
    """Copy files and folders of the cluster's shared storage here.

    Links out of a folder, sockets, pipes and devices are left out and listed.
    """
    ui, copier = UI(as_json), copies.copier(find(name))
    files.make(folder)
    plans = (copier.to_get(path, folder) for path in paths)
    return copies.run(ui, "get", copier, plans, yes=yes, ask_from=_ASK_FROM)
