"""Shell completion of arguments; unreadable data completes nothing.

All verbs import this module, so its functions import what they need when they are called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module

import typer

from gpubed.core.errors import GpubedError
from gpubed.core.paths import Project


def _beginning(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]


def _of(module: str, name: str = "names") -> Callable[[str], list[str]]:
    """Return a completion by the words of a constant, or of a function without arguments."""

    def complete(incomplete: str) -> list[str]:
        words = getattr(import_module(f"gpubed.{module}"), name)
        return _beginning(words() if callable(words) else words, incomplete)

    return complete


def clusters(incomplete: str) -> list[str]:
    """Offer the clusters of the project."""
    return _beginning(Project.find().clusters(), incomplete)


def engines(incomplete: str) -> list[str]:
    """Offer the engines."""
    return _beginning(("cli", "embedded"), incomplete)


backends = _of("spec.backend_config", "types")
recipes = _of("recipes.recipe")
jobs = _of("jobs.jobfile")
launchers = _of("jobs.launchers")
exports = _of("cluster.export", "KINDS")


def campaigns(incomplete: str) -> list[str]:
    """Offer the campaign files of the project and of gpubed."""
    from gpubed.campaigns import file

    return _beginning(file.names(Project.find()), incomplete)


def runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the runs of the cluster on the command line."""
    folder = Project.find().cluster(_word(ctx, "name", 0)).runs
    names = sorted((path.name for path in folder.glob("*-*")), reverse=True)
    return _beginning(["last", *names], incomplete)


def resumable(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the runs that can be resumed."""
    from gpubed.jobs.runs import checkpoints, record

    paths = Project.find().cluster(_word(ctx, "name", 0))
    names = [
        run.run_id
        for run in record.every(paths)[0].values()
        if run.state in ("failed", "interrupted") and checkpoints.of(run)
    ]
    return _beginning(["last", *reversed(names)] if names else [], incomplete)


def nodes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the nodes of the cluster on the command line."""
    from gpubed.nodes import allocation

    with suppress(GpubedError):
        paths = Project.find().cluster(_word(ctx, "name", 0))
        found = allocation.load(paths.allocation)
        return _beginning(["head", *(node.name for node in found.nodes)], incomplete)
    return []


def several_nodes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer nodes for a comma-separated list, without those already in it."""
    before, comma, last = incomplete.rpartition(",")
    listed = set(before.split(","))
    head = nodes(ctx, "")[:2]  # `head`, and the same node's own name
    if listed.intersection(head):
        listed.update(head)
    return [f"{before}{comma}{name}" for name in nodes(ctx, last) if name not in listed]


def roles(incomplete: str) -> list[str]:
    """Offer roles for a comma-separated list."""
    from gpubed.configuration import roles

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _beginning(roles.names(), last)]


def measured(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the campaigns that were measured on the cluster on the command line."""
    return _beginning(_measured_on(_word(ctx, "name", 0)), incomplete)


def measured_elsewhere(incomplete: str) -> list[str]:
    """Offer the clusters and, after a slash, the campaigns that were measured on one."""
    cluster, slash, _ = incomplete.partition("/")
    if not slash:
        return clusters(incomplete)
    return _beginning([f"{cluster}/{name}" for name in _measured_on(cluster)], incomplete)


def _measured_on(cluster: str) -> list[str]:
    found = Project.find().cluster(cluster).campaigns.glob("*/campaign.json")
    return sorted(path.parent.name for path in found)


def settings(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the arguments of the job on the command line and, after `NAME=`, the values."""
    from gpubed.jobs import jobfile

    with suppress(GpubedError):
        arguments = jobfile.load(_word(ctx, "job", 1)).arguments
        name, given, _ = incomplete.partition("=")
        if given and name in arguments:
            return _beginning([f"{name}={c}" for c in arguments[name].choices], incomplete)
        return _beginning([f"{name}=" for name in arguments], incomplete)
    return []


def _word(ctx: typer.Context, name: str, position: int) -> str:
    """Return an argument; click has not named it yet if an option follows that lacks its value."""
    given: str | None = ctx.params.get(name)
    return given or next(iter(ctx.args[position : position + 1]), "")
