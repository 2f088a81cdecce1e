"""The driver that serves all nodes of a cluster: branch, kernel module, CUDA line.

One branch for all, since NCCL and the CUDA runtime are one build for all; the
kernel module is each node's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpubed.errors import GpubedError
from gpubed.hardware.facts import Facts
from gpubed.hardware.table import Generation, table

UNKNOWN = "unknown"


class NoDriver(GpubedError):
    """No driver serves the nodes, or none that can be had."""


@dataclass(frozen=True)
class DriverChoice:
    """What to install.

    Attributes:
        branch: Driver branch, such as 580.
        source: Whose packages: a key of the offers.
        open_module: Nodes that take the open kernel module; the rest take the proprietary one.
        fabric_manager: Nodes that need Fabric Manager, of exactly the driver's version.
        cuda: The newest CUDA major version that runs on all nodes.
    """

    branch: int
    source: str
    open_module: tuple[str, ...]
    fabric_manager: tuple[str, ...]
    cuda: int


def choose(
    nodes: Mapping[str, Facts],
    offers: Mapping[str, Sequence[int]],
    *,
    pinned: int | None = None,
    cuda: int | None = None,
) -> DriverChoice:
    """Choose the newest branch that serves every GPU of every node.

    Args:
        nodes: Facts by node name, of the nodes that are to have GPUs.
        offers: Branches by source, the preferred source first.
        pinned: Take this branch, if it serves the nodes.
        cuda: CUDA major version that has to run.

    Raises:
        NoDriver: A node has no GPU, a GPU is unknown and no branch is pinned, or no
            branch serves all; the message names the nodes.
    """
    _require_gpus(nodes, pinned)
    oldest, newest = _range(nodes, cuda)
    branch, source = _pick(nodes, offers, pinned, oldest, newest)
    return DriverChoice(
        branch=branch,
        source=source,
        open_module=tuple(name for name, facts in nodes.items() if _open(name, facts, branch)),
        fabric_manager=tuple(name for name, facts in nodes.items() if facts.nvswitches),
        cuda=newest_cuda((g for facts in nodes.values() for g in facts.generations), branch),
    )


def require_common(nodes: Mapping[str, Facts]) -> None:
    """Check that one driver branch could serve all these nodes, whoever offers it.

    Raises:
        NoDriver: None could; the message names two nodes that no branch serves both.
    """
    _range(nodes, None)


def newest_cuda(generations: Iterable[str], branch: int) -> int:
    """Return the newest CUDA major version that a driver branch runs on these GPUs.

    Raises:
        NoDriver: The branch is older than any CUDA in the table.
    """
    ends = [g.last_cuda for g in _known(generations).values() if g.last_cuda]
    lines = [line for line, first in table().cuda.items() if first <= branch]
    fitting = [line for line in lines if not ends or line <= min(ends)]
    if not fitting:
        raise NoDriver(f"driver branch {branch} runs no CUDA that gpubed knows")
    return max(fitting)


def _known(generations: Iterable[str]) -> dict[str, Generation]:
    return {name: table().generations[name] for name in set(generations) if name != UNKNOWN}


def _require_gpus(nodes: Mapping[str, Facts], pinned: int | None) -> None:
    if bare := [name for name, facts in nodes.items() if not facts.gpus]:
        raise NoDriver(
            f"no NVIDIA GPU is on the PCI bus of {_listed(bare)}",
            "set gpus: 0 for that group in cluster.yml, or take nodes that have GPUs",
        )
    if pinned is None:
        for name, facts in nodes.items():
            for gpu in facts.gpus:
                if gpu.generation is None:
                    raise NoDriver(
                        f"{name} has a GPU that gpubed does not know: 10de:{gpu.device_id}",
                        "pin a driver: nvidia_driver_branch",
                    )


def _range(nodes: Mapping[str, Facts], cuda: int | None) -> tuple[int, int | None]:
    """Return the oldest and the newest branch that will do; None is no end."""
    served = [
        (name, generation, limits)
        for name, facts in nodes.items()
        for generation, limits in sorted(_known(facts.generations).items())
    ]
    if cuda is not None:
        too_old = [f"{n} ({g})" for n, g, s in served if s.last_cuda and s.last_cuda < cuda]
        if too_old:
            raise NoDriver(
                f"CUDA {cuda} has no code for {_listed(too_old)}",
                "choose a recipe with an older CUDA",
            )
    first = max(served, key=lambda row: row[2].first_branch, default=None)
    ending = [row for row in served if row[2].last_branch is not None]
    last = min(ending, key=lambda row: row[2].last_branch or 0, default=None)
    oldest = max(first[2].first_branch if first else 0, table().cuda[cuda] if cuda else 0)
    newest = last[2].last_branch if last else None
    if first and last and newest is not None and oldest > newest:
        begins = f"CUDA {cuda}" if oldest > first[2].first_branch else f"{first[0]} ({first[1]})"
        raise NoDriver(
            f"no driver serves all nodes: the last branch for {last[0]} ({last[1]}) is {newest}, "
            f"the first for {begins} is {oldest}",
            "give them clusters of their own",
        )
    return oldest, newest


def _pick(
    nodes: Mapping[str, Facts],
    offers: Mapping[str, Sequence[int]],
    pinned: int | None,
    oldest: int,
    newest: int | None,
) -> tuple[int, str]:
    def fits(branch: int) -> bool:
        return oldest <= branch and (newest is None or branch <= newest)

    wanted = f"{oldest} to {newest}" if newest else f"{oldest} or newer"
    if pinned is not None:
        if not fits(pinned):
            raise NoDriver(
                f"driver branch {pinned} does not serve {_listed(nodes)}: it has to be {wanted}",
                "change nvidia_driver_branch",
            )
        known = [source for source, branches in offers.items() if pinned in branches]
        return pinned, known[0] if known else list(offers)[-1]
    for source, branches in offers.items():
        if fitting := [branch for branch in branches if fits(branch)]:
            return max(fitting), source
    listed = "; ".join(f"{source}: {', '.join(map(str, b))}" for source, b in offers.items())
    raise NoDriver(
        f"{_listed(nodes)} need driver branch {wanted}, and there is {listed or 'none'}",
        "allow another source (nvidia_driver_sources) or choose a recipe with an older CUDA",
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


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
