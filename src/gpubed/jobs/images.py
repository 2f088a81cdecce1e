"""Container images that all nodes have: handed out over shared storage, and required by jobs.

The head gets an image once; role docker's `gpubed-image` keeps it as an archive that each
node loads. So N nodes cost the uplink one copy, and a registry is not needed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gpubed.core import parallel
from gpubed.core.errors import GpubedError, UsageError
from gpubed.nodes.allocation import Node
from gpubed.nodes.cluster import Cluster
from gpubed.nodes.ssh import SSH
from gpubed.spec.plan import ClusterPlan

T = TypeVar("T")
_TRANSFER_S = 3600.0
_ID = "docker image inspect --format '{{.Id}}' %s"
_MISSING = "no such image"  # what Docker says, in any release and in any case of letters


def hand_out(cluster: Cluster, image: str, archive: Path | None = None) -> str:
    """Give an image to all nodes.

    Args:
        archive: What `docker save` wrote, on this machine; without it, the head takes the
            image from its own Docker or pulls it.

    Returns:
        The image's id, the same on all nodes.

    Raises:
        UsageError: The cluster has no Docker, or there is no such archive.
        GpubedError: A node could not be reached, or did not get the image.
    """
    require_docker(cluster.plan)
    if archive and not archive.is_file():
        raise UsageError(f"there is no archive {archive}", "docker save IMAGE -o FILE makes one")
    with SSH(cluster.allocation.head, cluster.paths) as head:
        folder = f"{cluster.plan.spec.storage.shared.path}/images"
        head.run("mkdir -p %s", folder)
        arrived = f"{folder}/.arrived.tar"
        try:
            source: tuple[str, ...] = ()
            if archive:
                head.put(archive, arrived)
                source = (arrived,)
            keep = "gpubed-image keep %s" + " %s" * len(source)
            head.run(keep, image, *source, timeout=_TRANSFER_S)
        finally:
            head.run("rm -f %s", arrived)
    _on_each(cluster, lambda ssh: ssh.run("gpubed-image load", timeout=_TRANSFER_S))
    return require(cluster, image)


def require(cluster: Cluster, image: str) -> str:
    """Check that all nodes have the same image under this name.

    Returns:
        The image's id.

    Raises:
        UsageError: The cluster has no Docker.
        GpubedError: A node lacks the image, has another one, or its Docker does not answer.
    """
    require_docker(cluster.plan)
    repair = f"gpubed image {cluster.name} {image}"
    found: dict[str, str] = {}
    for node, answer in _on_each(cluster, lambda ssh: ssh.run(_ID, image, check=False)):
        if answer.exit_code == 0:
            found[node] = answer.stdout.strip()
        elif _MISSING not in answer.stderr.lower():
            why = f"Docker on {node} does not answer: {answer.tail}"
            raise GpubedError(why, f"gpubed configure {cluster.name}")
    missing = [node.name for node in cluster.allocation.nodes if node.name not in found]
    if missing:
        raise GpubedError(f"image {image} is not on {', '.join(missing)}", repair)
    wanted = found[cluster.allocation.head.name]
    others = [node for node, id_ in found.items() if id_ != wanted]
    if others:
        why = f"{', '.join(others)} has another image {image} than {cluster.allocation.head.name}"
        raise GpubedError(why, repair)
    return wanted


def require_docker(plan: ClusterPlan) -> None:
    """Refuse a cluster on which nobody could run a container.

    Raises:
        UsageError: It has no Docker, or none for its user.
    """
    docker = plan.spec.services.docker
    if docker is None or not docker.user_access:
        what = "no Docker" if docker is None else "Docker, but not for its user"
        key = "services.docker" if docker is None else "services.docker.user_access"
        fix = f"set {key} in cluster.yml, then: gpubed up {plan.spec.name}"
        raise UsageError(f"cluster {plan.spec.name} has {what}", fix)


def _on_each(cluster: Cluster, function: Callable[[SSH], T]) -> list[tuple[str, T]]:
    def ask(node: Node) -> tuple[str, T]:
        with SSH(node, cluster.paths) as ssh:
            return node.name, function(ssh)

    return parallel.each(ask, cluster.allocation.nodes)
