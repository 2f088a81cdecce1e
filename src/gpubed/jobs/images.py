"""Gives all nodes the container image that a job's ranks run in.

The head takes an image from its own Docker, or pulls it; role docker's `gpubed-image` keeps it as
an archive on shared storage that each node loads. N nodes cost the uplink one copy.
"""

from __future__ import annotations

from gpubed.core import parallel, progress
from gpubed.core.errors import GpubedError, UsageError
from gpubed.nodes.allocation import Cluster, Node
from gpubed.nodes.ssh import SSH
from gpubed.spec.plan import ClusterPlan

_TRANSFER_S = 3600.0
_ID = "docker image inspect --format '{{.Id}}' %s"
_MISSING = "no such image"  # part of Docker's message in all releases, in varying case


def require(cluster: Cluster, image: str) -> str:
    """Make sure that every node has an image; return its id.

    Raises:
        UsageError: The cluster has no Docker.
        GpubedError: The head cannot pull the image, a node did not get it, or a node's Docker does
            not answer.
    """
    require_docker(cluster.plan)
    ids = _ids(cluster, image)
    if len(set(ids)) > 1 or not ids[0]:
        nodes = cluster.allocation.nodes
        progress.emit("note", message=f"handing image {image} to {len(nodes)} nodes")
        with SSH(cluster.allocation.head, cluster.paths) as head:
            head.run("gpubed-image keep %s", image, timeout=_TRANSFER_S)
        parallel.each(lambda node: _load(cluster, node), nodes)
        ids = _ids(cluster, image)
        if len(set(ids)) > 1:
            lacking = [n.name for n, id_ in zip(nodes, ids, strict=True) if id_ != ids[0]]
            raise GpubedError(f"image {image} did not arrive on {', '.join(lacking)}")
    return ids[0]


def require_docker(plan: ClusterPlan) -> None:
    """Refuse a cluster on which jobs cannot run containers.

    Raises:
        UsageError: It has no Docker, or its user may not use it.
    """
    docker = plan.spec.services.docker
    if docker is None or not docker.user_access:
        what = "no Docker" if docker is None else "Docker, but not for its user"
        key = "services.docker" if docker is None else "services.docker.user_access"
        fix = f"set {key} in cluster.yml, then: gpubed up {plan.spec.name}"
        raise UsageError(f"cluster {plan.spec.name} has {what}", fix)


def _load(cluster: Cluster, node: Node) -> None:
    with SSH(node, cluster.paths) as ssh:
        ssh.run("gpubed-image load", timeout=_TRANSFER_S)


def _ids(cluster: Cluster, image: str) -> list[str]:
    def ask(node: Node) -> str:
        with SSH(node, cluster.paths) as ssh:
            answer = ssh.run(_ID, image, check=False)
        if answer.exit_code and _MISSING not in answer.stderr.lower():
            why = f"Docker on {node.name} does not answer: {answer.tail}"
            raise GpubedError(why, f"gpubed configure {cluster.name}")
        return "" if answer.exit_code else answer.stdout.strip()

    return parallel.each(ask, cluster.allocation.nodes)
