"""gpubed check."""

from dataclasses import asdict
from pathlib import Path

from gpubed.cli.options import ClusterName, Json, find, is_name, named
from gpubed.cli.ui import UI
from gpubed.configuration import owners_variables
from gpubed.engines import stack
from gpubed.testbeds import registry, specification

EXAMPLE = "gpubed check lab"
PLACE = ("Cluster", 30)


def command(name: ClusterName, as_json: Json = False) -> int:
    """Find all errors of a specification, with the allowed values."""
    ui = UI(as_json)
    paths = named(name)
    UI.cluster = paths.name
    if not (is_name(paths) and paths.inventory.is_dir()):
        find(name)  # raises an error that lists the clusters
    found, errors = specification.planned(paths.spec)
    errors = [*errors, *owners_variables.faults(paths)]
    ui.document("check", {"errors": [asdict(error) for error in errors]})
    for error in errors:
        ui.say(str(error))
    if not errors and found:
        here, spec = Path.cwd(), paths.spec
        shown = spec.relative_to(here) if spec.is_relative_to(here) else spec
        ui.say(f"{shown} is right: {len(found.nodes)} node(s)")
        registry.backend(found.backend).require_engine(stack.choose(None))
    return 2 if errors else 0
