"""gpubed export."""

from pathlib import Path

from typer import Argument, Option

from gpubed.cli import completion
from gpubed.cli.options import ClusterName, Json, find
from gpubed.cli.ui import UI
from gpubed.cluster import export
from gpubed.core import files
from gpubed.core.errors import UsageError

EXAMPLE = "gpubed export vw espec --out bundle"
PLACE = ("Cluster", 110)


def command(
    name: ClusterName,
    kind: str = Argument(
        ...,
        metavar="|".join(export.KINDS),
        help="The format.",
        autocompletion=completion.exports,
    ),
    out: Path | None = Option(None, "--out", help="A file; for espec, a folder. Else stdout."),
    as_json: Json = False,
) -> int:
    """Write a cluster for other tools: jFed, GENI, OpenSSH, Ansible."""
    ui = UI(as_json)
    if kind not in export.KINDS:
        raise UsageError(f"there is no export {kind!r}", ", ".join(export.KINDS))
    texts = export.export(find(name), kind)  # type: ignore[arg-type]  # one of them
    if out is None and len(texts) > 1 and not as_json:
        raise UsageError(
            f"{kind} is {len(texts)} files", f"gpubed export {name} {kind} --out FOLDER"
        )
    written = []
    for file, text in texts.items() if out else ():
        path = out / file if out and len(texts) > 1 else Path(str(out))
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_named(path, text.encode())
        written.append(str(path))
    ui.document("export", {"kind": kind, "files": texts, "written": written})
    for path_written in written:
        ui.note(f"wrote {path_written}")
    if out is None and not as_json:
        ui.raw(next(iter(texts.values())))
    return 0
