"""gpubed init."""

from typing import Annotated

import typer

from gpubed import paths, registry
from gpubed.cli.ui import UI
from gpubed.errors import UsageError
from gpubed.paths import Project

EXAMPLE = "gpubed init mycluster --backend local"


def command(
    cluster: Annotated[str, typer.Argument(metavar="CLUSTER", help="Name of the new cluster.")],
    backend: Annotated[str, typer.Option(help="The testbed.")] = "local",
) -> int:
    """Write a commented cluster.yml to start from."""
    if backend not in registry.backend_names():
        known = ", ".join(registry.backend_names())
        raise UsageError(f"there is no backend {backend!r}", f"backends: {known}")
    project = Project.find()
    target = project.cluster(cluster).spec
    if target.exists():
        raise UsageError(f"{target} is already there", f"gpubed check {cluster}")
    project.prepare()
    target.parent.mkdir(parents=True, exist_ok=True)
    template = paths.assets() / "templates" / "cluster" / f"{backend}.yml"
    target.write_text(template.read_text(encoding="utf-8"), encoding="utf-8")
    UI().note(f"wrote {target}; edit it, then: gpubed check {cluster} && gpubed up {cluster}")
    return 0
