"""Shell completion of arguments; data that cannot be read completes nothing.

Every verb names these functions, so what they need is imported when one is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module

import typer

from gpubed.core.errors import GpubedError
from gpubed.core.paths import Project

_Offer = Callable[[str], list[str]]


def _beginning(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]


def _of(module: str, name: str = "names", *before: Callable[[], object]) -> _Offer:
    """Return what offers the words that a function or a constant of a module has."""

    def offer(incomplete: str) -> list[str]:
        known = getattr(import_module(f"gpubed.{module}"), name)
        words = known(*(each() for each in before)) if callable(known) else known
        return _beginning(words, incomplete)

    return offer


def clusters(incomplete: str) -> list[str]:
    """Offer the clusters of the project."""
    return _beginning(Project.find().clusters(), incomplete)


def engines(incomplete: str) -> list[str]:
    """Offer the engines."""
    return _beginning(("cli", "embedded"), incomplete)


backends = _of("spec.backend_config", "types")
recipes = _of("recipes.recipe")
jobs = _of("jobs.jobfile")
campaigns = _of("campaigns.file", "names", Project.find)
launchers = _of("jobs.launchers")
exports = _of("cluster.export", "KINDS")


def runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the runs of the cluster on the command line."""
    folder = Project.find().cluster(_word(ctx, "name", 0)).runs
    names = sorted((path.name for path in folder.glob("*-*")), reverse=True)
    return _beginning(["last", *names], incomplete)


def resumable(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the runs that can be resumed."""
    from gpubed.jobs.runs import checkpoints, record

    paths = Project.find().cluster(_word(ctx, "name", 0))
    cut_off = [
        one.run_id
        for one in record.every(paths)[0].values()
        if one.state in ("failed", "interrupted") and checkpoints.of(one)
    ]
    return _beginning(["last", *reversed(cut_off)] if cut_off else [], incomplete)


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
    named = set(before.split(","))
    head = nodes(ctx, "")[:2]  # its two names
    if named.intersection(head):
        named.update(head)
    return [f"{before}{comma}{name}" for name in nodes(ctx, last) if name not in named]


def roles(incomplete: str) -> list[str]:
    """Offer roles for a comma-separated list."""
    from gpubed.configuration import roles

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _beginning(roles.names(), last)]


def measured(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the campaigns that were measured on the cluster on the command line."""
    folder = Project.find().cluster(_word(ctx, "name", 0)).campaigns
    return _beginning(
        sorted(path.parent.name for path in folder.glob("*/campaign.json")), incomplete
    )


def measured_elsewhere(incomplete: str) -> list[str]:
    """Offer the clusters and, after a slash, the campaigns that were measured on one."""
    cluster, slash, _ = incomplete.partition("/")
    if not slash:
        return clusters(incomplete)
    found = Project.find().cluster(cluster).campaigns.glob("*/campaign.json")
    return _beginning(sorted(f"{cluster}/{path.parent.name}" for path in found), incomplete)


def settings(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the arguments of the job that was named before, and the values of one."""
    from gpubed.jobs import jobfile

    with suppress(GpubedError):
        arguments = jobfile.load(_word(ctx, "job", 1)).arguments
        name, given, _ = incomplete.partition("=")
        if given and name in arguments:
            return _beginning([f"{name}={c}" for c in arguments[name].choices], incomplete)
        return _beginning([f"{name}=" for name in arguments], incomplete)
    return []


def _word(ctx: typer.Context, name: str, position: int) -> str:
    """Return an argument; before the value of an option they are not named yet."""
    given: str | None = ctx.params.get(name)
    return given or next(iter(ctx.args[position : position + 1]), "")
