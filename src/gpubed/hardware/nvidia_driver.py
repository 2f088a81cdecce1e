"""Chooses the driver of a cluster's nodes: branch, kernel module, CUDA version.

A recipe has an *oldest driver* (`580.65.06`); a *branch* (`580`) has several *versions*
(`580.82.07`). All nodes get one branch if possible, since they share one build of NCCL and of the
CUDA runtime; the kernel module may differ by node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Self

from packaging.version import Version
from pydantic import TypeAdapter

from gpubed.core import reading
from gpubed.core.errors import GpubedError
from gpubed.core.paths import assets
from gpubed.hardware.facts import Facts
from gpubed.hardware.table import Generation, table

UNKNOWN = "unknown"
_NO_END = 10**6
_VARIABLES = TypeAdapter(dict[str, Any])


class NoDriver(GpubedError):
    """No driver serves all GPUs, or no source offers it."""


@dataclass(frozen=True)
class Offer:
    """A driver branch of a package source, and the packages for NVSwitches that it comes with."""

    branch: int
    fabric_manager: bool = False
    subnet_manager: bool = False


@cache
def offers(image: str) -> Mapping[str, tuple[Offer, ...]]:
    """Return the branches that role nvidia_driver installs on an image such as `debian-12`.

    By source, the preferred source first.
    """
    role = assets() / "roles" / "nvidia_driver"
    release = image.replace("-", " ").capitalize()
    variables = reading.file(role / f"vars/{release.split()[0]}.yml").yaml(_VARIABLES)
    defaults = reading.file(role / "defaults" / "main.yml").yaml(_VARIABLES)
    managers = ("fabric_manager", "subnet_manager")
    return {
        source: tuple(
            Offer(row["branch"], *(row.get(manager, False) for manager in managers))
            for row in variables["__nvidia_driver_catalog"][source]
            if row["release"] in (release, "")
        )
        for source in defaults["nvidia_driver_sources"]
    }


@dataclass(frozen=True)
class Wanted:
    """Requirements on the driver; None stands for no requirement."""

    branch: int | None = None
    version: str | None = None
    oldest: str | None = None
    cuda: int | None = None  # CUDA major version that has to run

    @classmethod
    def of(cls, cuda: str | None, oldest: str | None) -> Self:
        """Return the requirements of a recipe: its CUDA, such as `12.6`, and its oldest driver."""
        return cls(oldest=oldest, cuda=int(cuda.split(".")[0]) if cuda else None)

    @property
    def pinned(self) -> int | None:
        """The required branch, or the branch of the required version."""
        return self.branch if self.version is None else branch_of(self.version)


@dataclass(frozen=True)
class DriverChoice:
    """The drivers that the nodes run."""

    branch: int  # branch to install, such as 580
    source: str  # package source of that branch: a key of the offers
    open_module: tuple[str, ...]  # nodes with the open kernel module; others: proprietary
    fabric_manager: tuple[str, ...]  # nodes that need Fabric Manager, of exactly the same version
    subnet_manager: tuple[str, ...]  # of these, the nodes that also need the NVLink subnet manager
    cuda: int  # the newest CUDA major version that runs on all nodes
    kept: dict[str, str] = field(default_factory=dict)  # versions of drivers that stay, by node
    replaced: dict[str, str] = field(default_factory=dict)  # why drivers are replaced, by node


def choose(
    nodes: Mapping[str, Facts],
    offers: Mapping[str, Sequence[Offer]],
    wanted: Wanted = Wanted(),  # frozen
    asked: Mapping[str, int] | None = None,
) -> DriverChoice:
    """Keep installed drivers that serve their nodes, and choose one branch for all other nodes.

    That is the branch of the kept drivers if a source offers it, else the newest branch that the
    first source with a fitting one offers. Raises `NoDriver` if a node has no GPU, a GPU is unknown
    and no branch is required, no branch serves all nodes, or a driver cannot be replaced.

    Args:
        nodes: Facts of the nodes with GPUs, by name.
        offers: Branches by source, the preferred source first.
        asked: Number of GPUs that jobs use, by node; on other nodes, all GPUs count.
    """
    _require_agreement(wanted)
    _require_gpus(nodes, wanted)
    nodes = {
        n: _without_spare(n, facts, wanted, (asked or {}).get(n, 0)) for n, facts in nodes.items()
    }
    _range(nodes, wanted)
    objections = {name: _objection(name, facts, wanted) for name, facts in nodes.items()}
    kept = {n: nodes[n].driver.installed or "" for n, reason in objections.items() if reason == ""}
    rest = {name: facts for name, facts in nodes.items() if name not in kept}
    replaced = {name: reason for name, reason in objections.items() if reason}
    for name, reason in replaced.items():
        if nodes[name].driver.runfile:
            raise NoDriver(
                f"{name} {reason}, and NVIDIA's .run file installed it, not packages",
                "remove it on that node (nvidia-uninstall), then run this again",
            )
    # If all nodes keep their drivers, the result is the newest of their branches.
    branches = sorted({branch_of(version) for version in kept.values()}, reverse=True)
    branch, source = _pick(rest, offers, wanted, branches) if rest else (branches[0], "")
    of_node = {name: branch_of(kept[name]) if name in kept else branch for name in nodes}
    return DriverChoice(
        branch=branch,
        source=source,
        open_module=tuple(n for n, facts in nodes.items() if _open(n, facts, of_node[n])),
        fabric_manager=tuple(name for name, facts in nodes.items() if facts.fabric),
        subnet_manager=tuple(name for name, facts in nodes.items() if facts.nvlink5),
        cuda=newest_cuda(
            (g for facts in nodes.values() for g in facts.generations), min(of_node.values())
        ),
        kept=kept,
        replaced=replaced,
    )


def branch_of(version: str) -> int:
    """Return the branch of a version: 580 of `580.65.06`."""
    return int(version.split(".")[0])


def require_common(nodes: Mapping[str, Facts]) -> None:
    """Raise `NoDriver` if no driver branch serves all nodes, offered or not."""
    _range(nodes, Wanted())


def newest_cuda(generations: Iterable[str], branch: int) -> int:
    """Return the newest CUDA major version that a driver branch runs on these GPUs."""
    ends = [g.last_cuda for g in _known(generations).values() if g.last_cuda]
    lines = [line for line, first in table().cuda.items() if first <= branch]
    fitting = [line for line in lines if not ends or line <= min(ends)]
    if not fitting:
        raise NoDriver(f"driver branch {branch} supports no CUDA that gpubed knows for these GPUs")
    return max(fitting)


def _known(generations: Iterable[str]) -> dict[str, Generation]:
    return {name: table().generations[name] for name in set(generations) if name != UNKNOWN}


def _require_agreement(wanted: Wanted) -> None:
    if wanted.version is None:
        return
    if wanted.branch is not None and wanted.branch != wanted.pinned:
        raise NoDriver(
            f"driver {wanted.version} is not of branch {wanted.branch}",
            "set nvidia_driver_version or nvidia_driver_branch, not both",
        )
    if wanted.oldest and Version(wanted.version) < Version(wanted.oldest):
        raise NoDriver(
            f"driver {wanted.version} is older than {wanted.oldest}, the oldest for the recipe",
            "change nvidia_driver_version, or choose a recipe with an older CUDA",
        )


def _require_gpus(nodes: Mapping[str, Facts], wanted: Wanted) -> None:
    if bare := [name for name, facts in nodes.items() if not facts.gpus]:
        raise NoDriver(
            f"no NVIDIA GPU is on the PCI bus of {', '.join(bare)}",
            "set gpus: 0 for that group in cluster.yml, or take nodes that have GPUs",
        )
    if wanted.pinned is None:
        for name, facts in nodes.items():
            for gpu in facts.gpus:
                if gpu.generation is None:
                    raise NoDriver(
                        f"{name} has a GPU that gpubed does not know: 10de:{gpu.device_id}",
                        "pin a driver: nvidia_driver_branch",
                    )


def _without_spare(name: str, facts: Facts, wanted: Wanted, asked: int) -> Facts:
    """Return a node's facts without older GPUs that rule out a driver, if enough others are left.

    Nodes often have an older GPU for a screen, which the driver need not serve. If leaving out
    older GPUs does not help, all GPUs count.
    """
    ages = {
        g: (limits.last_branch or _NO_END, limits.first_branch)
        for g, limits in _known(facts.generations).items()
    }
    fewer = [facts]
    for generation in sorted(ages, key=lambda g: ages[g]):
        rest = tuple(gpu for gpu in fewer[-1].gpus if gpu.generation != generation)
        if asked and len(rest) >= asked:
            fewer.append(fewer[-1].model_copy(update={"gpus": rest}))
    able = [some for some in fewer if _can_be_served(name, some, wanted)]
    staying = [some for some in able if _objection(name, some, wanted) == ""]
    return next(iter([*staying, *able]), facts)


def _can_be_served(name: str, facts: Facts, wanted: Wanted) -> bool:
    try:
        oldest, newest = _range({name: facts}, wanted)
        _open(name, facts, newest or oldest)
    except NoDriver:
        return False
    return True


def _objection(name: str, facts: Facts, wanted: Wanted) -> str | None:
    """Return why the installed driver cannot stay; empty if it can, None if none is installed."""
    installed = facts.driver.installed
    if installed is None:
        return None
    # A loaded driver works, even if apt could not finish the installation of its packages.
    if facts.driver.unfinished and installed != facts.driver.loaded and not facts.driver.runfile:
        broken = ", ".join(facts.driver.unfinished)
        return f"has driver {installed}, whose installation did not end ({broken})"
    if wanted.version is not None and installed != wanted.version:
        return f"has driver {installed}, and {wanted.version} is asked for"
    if wanted.pinned is not None and branch_of(installed) != wanted.pinned:
        return f"has driver {installed}, and branch {wanted.pinned} is asked for"
    if wanted.oldest and Version(installed) < Version(wanted.oldest):
        return f"has driver {installed}, and the recipe needs {wanted.oldest} or newer"
    oldest, newest = _range({name: facts}, wanted)
    if not oldest <= branch_of(installed) <= (newest or branch_of(installed)):
        return f"has driver {installed}, which does not serve its GPUs"
    driver = facts.driver
    kinds = {limits.open_module for limits in _known(facts.generations).values()}
    if driver.open is None or driver.loaded != driver.installed:
        return ""
    if ("no" if driver.open else "only") not in kinds:
        return ""
    loaded, needed = ("open", "proprietary") if driver.open else ("proprietary", "open")
    return (
        f"has the {loaded} kernel module of driver {driver.installed}, and "
        f"{', '.join(facts.generations)} needs the {needed} one"
    )


def _range(nodes: Mapping[str, Facts], wanted: Wanted) -> tuple[int, int | None]:
    """Return the oldest and the newest branch that serve all nodes; None if there is no newest."""
    cuda = wanted.cuda
    served = [
        (name, generation, limits)
        for name, facts in nodes.items()
        for generation, limits in sorted(_known(facts.generations).items())
    ]
    if cuda is not None:
        too_old = [f"{n} ({g})" for n, g, s in served if s.last_cuda and s.last_cuda < cuda]
        if too_old:
            raise NoDriver(
                f"CUDA {cuda} has no code for {', '.join(too_old)}",
                "choose a recipe with an older CUDA",
            )
    first = max(served, key=lambda row: row[2].first_branch, default=None)
    ending = [row for row in served if row[2].last_branch is not None]
    last = min(ending, key=lambda row: row[2].last_branch or 0, default=None)
    oldest = max(
        first[2].first_branch if first else 0,
        table().cuda[cuda] if cuda else 0,
        branch_of(wanted.oldest) if wanted.oldest else 0,
    )
    newest = last[2].last_branch if last else None
    if first and last and newest is not None and oldest > newest:
        begins = "the recipe" if oldest > first[2].first_branch else f"{first[0]} ({first[1]})"
        raise NoDriver(
            f"no driver serves all nodes: the last branch for {last[0]} ({last[1]}) is {newest}, "
            f"the first for {begins} is {oldest}",
            "give them clusters of their own",
        )
    return oldest, newest


def _pick(
    nodes: Mapping[str, Facts],
    offers: Mapping[str, Sequence[Offer]],
    wanted: Wanted,
    others: Sequence[int],
) -> tuple[int, str]:
    oldest, newest = _range(nodes, wanted)

    def fits(branch: int) -> bool:
        return oldest <= branch and (newest is None or branch <= newest)

    range_ = f"{oldest} to {newest}" if newest else f"{oldest} or newer"
    if wanted.pinned is not None and not fits(wanted.pinned):
        raise NoDriver(
            f"driver branch {wanted.pinned} does not serve {', '.join(nodes)}: it must be {range_}",
            "change nvidia_driver_branch",
        )
    switched = any(facts.fabric for facts in nodes.values())
    managed = any(facts.nvlink5 for facts in nodes.values())
    # Fabric Manager must have exactly the driver's version, so both come from one source.
    offered = {
        source: [
            offer.branch
            for offer in of_source
            if (offer.fabric_manager or not switched) and (offer.subnet_manager or not managed)
        ]
        for source, of_source in offers.items()
    }
    if wanted.pinned is not None:
        sources = [source for source, branches in offered.items() if wanted.pinned in branches]
        return wanted.pinned, sources[0] if sources else list(offers)[-1]
    for branch in filter(fits, others):
        if sources := [source for source, branches in offered.items() if branch in branches]:
            return branch, sources[0]
    for source, branches in offered.items():
        if fitting := [branch for branch in branches if fits(branch)]:
            return max(fitting), source
    there = "; ".join(f"{s}: {', '.join(map(str, b)) or 'none'}" for s, b in offered.items())
    hint = "allow another source (nvidia_driver_sources) or choose a recipe with an older CUDA"
    if newest is not None and any(b > newest for branches in offered.values() for b in branches):
        hint = "use an image with Debian 12, whose sources have older branches"
        if len({generation for facts in nodes.values() for generation in facts.generations}) > 1:
            hint += ", or give each generation of GPUs a cluster of its own"
    raise NoDriver(
        f"{', '.join(nodes)} {'needs' if len(nodes) == 1 else 'need'} driver branch {range_}"
        f"{' with Fabric Manager' if switched else ''}"
        f"{' and the NVLink subnet manager' if managed else ''}, and there is {there or 'none'}",
        hint,
    )


def _open(name: str, facts: Facts, branch: int) -> bool:
    kinds = {g: limits.open_module for g, limits in _known(facts.generations).items()}
    only = [g for g, kind in kinds.items() if kind == "only"]
    never = [g for g, kind in kinds.items() if kind == "no"]
    if only and never:
        raise NoDriver(
            f"no kernel module serves all GPUs of {name}: {only[0]} needs the open one, "
            f"{never[0]} the proprietary one",
            "take one of them out, or pass them to machines of their own",
        )
    return bool(only) or (not never and branch >= table().open_default)
