"""Shell completion of arguments; data that cannot be read completes nothing.

Every verb names these functions, so what they need is imported when one is called.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import typer

from gpubed.core.errors import GpubedError
from gpubed.core.paths import Project
from gpubed.spec import backend_config


def clusters(incomplete: str) -> list[str]:
    """Offer the clusters of the project."""
    return _beginning(Project.find().clusters(), incomplete)


def backends(incomplete: str) -> list[str]:
    """Offer the testbeds."""
    return _beginning(backend_config.names(), incomplete)


def engines(incomplete: str) -> list[str]:
    """Offer the engines."""
    return _beginning(("cli", "embedded"), incomplete)


def recipes(incomplete: str) -> list[str]:
    """Offer the recipes."""
    from gpubed.recipes import recipe

    return _beginning(recipe.names(), incomplete)


def jobs(incomplete: str) -> list[str]:
    """Offer the jobs, the project's own among them."""
    from gpubed.jobs import jobfile

    return _beginning(jobfile.names(), incomplete)


def campaigns(incomplete: str) -> list[str]:
    """Offer the campaigns, the project's own among them."""
    from gpubed.campaigns import file

    return _beginning(file.names(Project.find()), incomplete)


def launchers(incomplete: str) -> list[str]:
    """Offer what starts jobs."""
    from gpubed.jobs import launchers as known

    return _beginning(known.names(), incomplete)


def exports(incomplete: str) -> list[str]:
    """Offer the words of other tools."""
    from gpubed.cluster import export

    return _beginning(export.KINDS, incomplete)


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
    return _beginning(_measured(_word(ctx, "name", 0)), incomplete)


def measured_elsewhere(incomplete: str) -> list[str]:
    """Offer the clusters and, after a slash, the campaigns that were measured on one."""
    cluster, slash, _ = incomplete.partition("/")
    if not slash:
        return clusters(incomplete)
    return _beginning((f"{cluster}/{name}" for name in _measured(cluster)), incomplete)


def _measured(cluster: str) -> list[str]:
    folder = Project.find().cluster(cluster).campaigns
    return sorted(path.parent.name for path in folder.glob("*/campaign.json"))


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


def _beginning(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]
