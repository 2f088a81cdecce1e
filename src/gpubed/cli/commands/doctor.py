"""gpubed doctor."""

from dataclasses import asdict, replace

from typer import Argument, Option

from gpubed.cli import completion
from gpubed.cli.options import Json, find
from gpubed.cli.ui import UI
from gpubed.cluster import doctor

EXAMPLE = "gpubed doctor lab"
PLACE = ("Care", 10)


def command(
    cluster: str | None = Argument(None, metavar="[CLUSTER]", autocompletion=completion.clusters),
    fix: bool = Option(False, "--fix", help="Install Pulumi's CLI and plugins."),
    as_json: Json = False,
) -> int:
    """Find what is missing on this machine, and how to repair it."""
    ui, paths = UI(as_json), find(cluster) if cluster else None
    if fix:
        doctor.repair(paths, ui.note)
    found = doctor.examine(paths)
    findings = [replace(finding, fix=finding.fix and ui.filled(finding.fix)) for finding in found]
    ui.document("doctor", {"findings": [asdict(finding) for finding in findings]})
    for finding in findings:
        ui.say(f"{'ok  ' if finding.ok else 'FAIL'} {finding.id}: {finding.message}")
        if not finding.ok and finding.fix:
            ui.say(f"       → {finding.fix}", whole=True)
    return 0 if all(finding.ok for finding in findings) else 3
