"""Distributes the container image of a job to all nodes.

If the head's Docker lacks the image, it pulls it. `gpubed-image` of role docker keeps it as an
archive on shared storage, from where each node loads it: only the head downloads.
"""

from __future__ import annotations

import re

from gpubed.core import parallel, progress
from gpubed.core.errors import GpubedError, UsageError
from gpubed.nodes.allocation import Cluster, Node
from gpubed.nodes.ssh import SSH
from gpubed.spec.plan import ClusterPlan
from gpubed.spec.sections import registry_of

_TRANSFER_S = 3600.0
_ID = "docker image inspect --format '{{.Id}}' %s"
# Parts of Docker's messages.
_REFUSED = re.compile("unauthorized|denied|forbidden|no basic auth", re.IGNORECASE)
_MISSING = "no such image"  # part of Docker's message in all releases, in varying case


def require(cluster: Cluster, image: str) -> str:
    """Make sure that every node has an image; return its id.

    Raises:
        UsageError: The cluster has no Docker.
        PrerequisiteMissing: The registry's password cannot be read, or others can read it.
        GpubedError: The head cannot pull the image, a node did not get it, or a node's Docker does
            not answer.
    """
    require_docker(cluster.plan)
    ids = _ids(cluster, image)
    if len(set(ids)) > 1 or not ids[0]:
        nodes = cluster.allocation.nodes

        def load(node: Node) -> None:
            with SSH(node, cluster.paths) as ssh:
                ssh.run("gpubed-image load", timeout=_TRANSFER_S)

        progress.emit("note", message=f"copying image {image} to {len(nodes)} nodes")
        _keep(cluster, image, pull=not ids[0])
        parallel.each(load, nodes)
        ids = _ids(cluster, image)
        if len(set(ids)) > 1:
            lacking = [n.name for n, id_ in zip(nodes, ids, strict=True) if id_ != ids[0]]
            raise GpubedError(f"image {image} did not arrive on {', '.join(lacking)}")
    return ids[0]


def require_docker(plan: ClusterPlan) -> None:
    """Raise `UsageError` if a cluster has no Docker, or its user may not use it."""
    docker = plan.spec.services.docker
    if docker is None or not docker.user_access:
        what = "no Docker" if docker is None else "Docker, but not for its user"
        key = "services.docker" if docker is None else "services.docker.user_access"
        fix = f"set {key} in cluster.yml, then: gpubed up {plan.spec.name}"
        raise UsageError(f"cluster {plan.spec.name} has {what}", fix)


def _keep(cluster: Cluster, image: str, *, pull: bool) -> None:
    """Archive an image on shared storage; with `pull`, pull it first, by the registry's login.

    The password goes over SSH to the standard input of `gpubed-image`; no node stores it.
    """
    docker, registry = cluster.plan.spec.services.docker, registry_of(image)
    where = f"services.docker.registries.{registry}"
    login = docker.registries.get(registry) if docker and pull else None
    words = ["keep-as", login.user, registry, image] if login else ["keep", image]
    password = login.password(where) if login else ""
    with SSH(cluster.allocation.head, cluster.paths) as head:
        done = head.run(
            f"gpubed-image{' %s' * len(words)}",
            *words,
            timeout=_TRANSFER_S,
            check=False,
            stdin=password,
        )
    if not done.exit_code:
        return
    if login and "usage: gpubed-image" in done.stderr:
        why = f"the head's gpubed-image is of a former version, and cannot log in to {registry}"
        raise GpubedError(why, f"gpubed up {cluster.name}")
    if login and _REFUSED.search(done.stderr):
        raise GpubedError(
            f"{registry} refuses {login.user}, or {login.user} may not have {image}: {done.tail}",
            f"correct {where} in cluster.yml, or the password in {login.password_file}",
        )
    fix = f"check the name, and whether the head reaches {registry}"
    if _REFUSED.search(done.stderr):
        fix = f"if it is private: {where}: {{user: NAME, password_file: FILE}} in cluster.yml"
    what = "pull" if pull else "archive"
    raise GpubedError(f"the head cannot {what} {image}: {done.tail}", fix if pull else None)


def _ids(cluster: Cluster, image: str) -> list[str]:
    def ask(node: Node) -> str:
        with SSH(node, cluster.paths) as ssh:
            answer = ssh.run(_ID, image, check=False)
        if answer.exit_code and _MISSING not in answer.stderr.lower():
            why = f"Docker on {node.name} does not answer: {answer.tail}"
            raise GpubedError(why, f"gpubed configure {cluster.name}")
        return "" if answer.exit_code else answer.stdout.strip()

    return parallel.each(ask, cluster.allocation.nodes)
