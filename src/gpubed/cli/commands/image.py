"""gpubed image."""

from pathlib import Path
from typing import Annotated

import typer

from gpubed.cli.options import ClusterName, Json, find
from gpubed.cli.ui import UI
from gpubed.jobs import images
from gpubed.testbeds.specification import load_cluster

EXAMPLE = "gpubed image lab my/horovod:1 --archive image.tar"
PLACE = ("Work", 70)


def command(
    name: ClusterName,
    image: Annotated[str, typer.Argument(help="Name of a container image.")],
    archive: Annotated[
        Path | None,
        typer.Option(help="What `docker save` wrote; without it, the head pulls the image."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Give a container image to all nodes. It crosses the uplink once."""
    ui, cluster = UI(as_json), load_cluster(find(name))
    cluster.allocation.require_nodes()
    images.require_docker(cluster.plan)
    ui.note(f"handing {image} to {len(cluster.allocation.nodes)} nodes …")
    id_ = images.hand_out(cluster, image, archive)
    nodes = [node.name for node in cluster.allocation.nodes]
    ui.document("image", {"image": image, "id": id_, "nodes": nodes})
    ui.say(f"{image} ({id_}) is on {', '.join(nodes)}")
    return 0
