"""gpubed image."""

from pathlib import Path
from typing import Annotated

import typer

from gpubed.cli.options import Cluster, Json, find
from gpubed.cli.ui import UI
from gpubed.jobs import images
from gpubed.nodes.allocation import load as load_allocation
from gpubed.testbeds.specification import load_plan

EXAMPLE = "gpubed image lab my/horovod:1 --archive image.tar"


def command(
    cluster: Cluster,
    image: Annotated[str, typer.Argument(help="Name of a container image.")],
    archive: Annotated[
        Path | None,
        typer.Option(help="What `docker save` wrote; without it, the head pulls the image."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Give a container image to all nodes; it crosses the uplink once."""
    ui, paths = UI(as_json), find(cluster)
    granted, wanted = load_allocation(paths.allocation), load_plan(paths.spec)
    granted.require_nodes()
    images.require_docker(wanted)
    ui.note(f"handing {image} to {len(granted.nodes)} nodes …")
    id_ = images.hand_out(paths, wanted, granted, image, archive)
    nodes = [node.name for node in granted.nodes]
    ui.document("image", {"image": image, "id": id_, "nodes": nodes})
    ui.say(f"{image} ({id_}) is on {', '.join(nodes)}")
    return 0
