"""Plays scenarios: breaks, looks, ends it, repairs as a user would, and checks what must hold."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any

from gpubed.chaos.scenario import Ground, Held, Scenario, Unfit
from gpubed.cluster import audit, costs, status, up
from gpubed.core.errors import GpubedError, UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.engines import interruption
from gpubed.engines.stack import EngineName, Stack
from gpubed.nodes import allocation, rates
from gpubed.nodes.cluster import Cluster
from gpubed.nodes.ssh import SSH
from gpubed.testbeds import broken, registry
from gpubed.testbeds.breaker import Harm
from gpubed.testbeds.specification import load_plan

# A node that goes on takes its time until it answers again.
_SETTLES_S = 60.0
_LOOK_EVERY_S = 2.0
_LETTERS = 4096


@dataclass
class Played:
    """What came of a scenario.

    Attributes:
        seconds: From the break until all was checked.
        held: What must hold, and whether it does.
    """

    scenario: str
    node: str
    seed: int
    seconds: float = 0.0
    held: list[Held] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether all of it holds."""
        return all(one.ok for one in self.held)

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "scenario": self.scenario,
            "node": self.node,
            "seed": self.seed,
            "seconds": round(self.seconds, 2),
            "held": [asdict(one) for one in self.held],
            "ok": self.ok,
        }


def ground(paths: ClusterPaths, checkpoint: str = "") -> Ground:
    """Return a cluster as one that may be broken.

    Raises:
        UsageError: Nodes of its testbed are not broken on purpose.
        GpubedError: It is not up.
    """
    given = allocation.load(paths.allocation)
    breaker = registry.bound(given.backend, paths).breaker()
    return Ground(Cluster(paths, load_plan(paths.spec), given), breaker, checkpoint)


def require_whole(paths: ClusterPaths, engine: EngineName) -> None:
    """Refuse to break what is broken already.

    Raises:
        GpubedError: It is.
    """
    if paths.broken.exists():
        raise GpubedError(
            f"a `gpubed chaos` on {paths.name} was killed, or left what it broke: that is "
            "undone before another begins",
            f"gpubed up {paths.name}",
        )
    if (state := status.status(paths, engine)["state"]) != "ready":
        raise GpubedError(
            f"{paths.name} is {state}: what chaos breaks must be whole before",
            f"gpubed up {paths.name}",
        )
    rates.require_declared(paths)


def cast(scenario: type[Scenario], on: Ground, seed: int, node: str | None = None) -> Scenario:
    """Choose a node for a scenario, the same for the same seed, whatever is played before it.

    Raises:
        Unfit: It cannot be played on this cluster, or not on this node.
        UsageError: There is no such node.
    """
    able = scenario.nodes(on)
    draw = Random(f"{seed} {scenario.name}")  # noqa: S311  # to be repeated, not to be secret
    chosen = draw.choice(able)
    if node:
        chosen = on.cluster.allocation.node(node)
        if chosen not in able:
            names = ", ".join(one.name for one in able)
            raise Unfit(f"{scenario.name} cannot be played on {chosen.name}", f"--on {names}")
    return scenario(on, chosen, draw)


def order(scenarios: Iterable[str], seed: int) -> list[str]:
    """Return scenarios in an order that the seed draws."""
    names = sorted(scenarios)
    return Random(seed).sample(names, len(names))  # noqa: S311


class Play:
    """Plays scenarios on a cluster.

    Args:
        engine: What repairs run with.
        lasts_s: How long what is broken stays so.
        say: Is told what happens.
    """

    def __init__(
        self, paths: ClusterPaths, engine: EngineName, lasts_s: float, say: Callable[[str], None]
    ) -> None:
        self._paths, self._engine = paths, engine
        self._lasts_s, self._say = lasts_s, say

    def only_break(self, scenario: Scenario, harm: Harm) -> None:
        """Break, and leave it so; what was begun and failed is undone.

        Raises:
            GpubedError: It cannot be done.
        """
        try:
            self._break(scenario, harm)
        except BaseException:
            self._undo(harm)
            raise

    def play(self, scenario: Scenario, harm: Harm, seed: int) -> Played:
        """Play a scenario to its end.

        Raises:
            GpubedError: It could not even begin.
        """
        played = Played(scenario.name, scenario.node.name, seed)
        with _marker(scenario.ground) as is_there:
            began = time.monotonic()
            with self._broken(scenario, harm):
                played.held += self._meanwhile(scenario, began + self._lasts_s)
            if not scenario.by_itself:
                played.held.append(self._repair(scenario))
            played.held += [self._whole(), *_told(scenario.afterwards()), self._audited()]
            played.held.append(Held("the shared storage has what was written before", is_there()))
            played.seconds = time.monotonic() - began
        return played

    @contextmanager
    def _broken(self, scenario: Scenario, harm: Harm) -> Iterator[None]:
        """Break, and end it: by ourselves where it has an end, else only if that is cut short."""
        interruption.then(harm.by_hand)
        came_to_its_end = False
        try:
            self._break(scenario, harm)
            yield
            came_to_its_end = True
        finally:
            if scenario.by_itself or not came_to_its_end:
                self._undo(harm)
        interruption.then(f"gpubed up {self._paths.name}")

    def _break(self, scenario: Scenario, harm: Harm) -> None:
        if scenario.by_itself:  # what `up` would not repair without knowing of it
            on = scenario.ground
            broken.note(self._paths, on.cluster.allocation, scenario.name, scenario.node.name, harm)
        harm.do()

    def _undo(self, harm: Harm) -> None:
        if harm.undo:
            harm.undo()
            broken.forget(self._paths)
            # Only now: on a terminal that was closed, nothing more can be said.
            self._say("it was undone")
            interruption.then(f"it was undone; gpubed up {self._paths.name} puts right the rest")

    def _meanwhile(self, scenario: Scenario, until: float) -> list[Held]:
        held = list(_told(self._seen(scenario)))
        self._tell(held)
        time.sleep(max(0.0, until - time.monotonic()))
        return held

    def _seen(self, scenario: Scenario) -> Iterator[Held]:
        yield from scenario.meanwhile(status.status(self._paths, self._engine))

    def _tell(self, held: Sequence[Held]) -> None:
        for one in held:
            self._say(f"{'holds' if one.ok else 'DOES NOT HOLD'}: {one.what}")

    def _repair(self, scenario: Scenario) -> Held:
        """Do what a user does; it may cost what was broken, and nothing else."""
        what = "`gpubed up` repairs it"

        def approve(lines: Sequence[str]) -> None:
            if beyond := costs.beyond(lines, {scenario.node.name}):
                raise UsageError(f"it would cost more than what was broken: {'; '.join(beyond)}")

        try:
            up.up(self._paths, self._engine, approve=approve)
        except GpubedError as error:
            return Held(what, False, error.message)
        return Held(what, True)

    def _whole(self) -> Held:
        """Wait until the cluster is as before."""
        until = time.monotonic() + _SETTLES_S
        while True:
            found = status.status(self._paths, self._engine)
            wrong = {n["name"]: n["state"] for n in found["nodes"] if n["state"] != "ready"}
            is_well = found["state"] == "ready" and not wrong
            if is_well or time.monotonic() > until:
                why = ", ".join(f"{name} is {state}" for name, state in wrong.items())
                return Held("all nodes are ready", is_well, why or found["state"])
            time.sleep(_LOOK_EVERY_S)

    def _audited(self) -> Held:
        found = audit.audit(Stack(self._paths, self._engine))
        extra = [*map(str, (*found.missing, *found.extra, *found.away)), *found.interrupted]
        return Held("`gpubed audit` finds nothing amiss", found.clean, "; ".join(extra))


def _told(held: Iterator[Held]) -> Iterator[Held]:
    """Give what holds; what cannot even be looked at does not."""
    try:
        yield from held
    except GpubedError as error:
        yield Held("it can be looked at", False, error.message)


@contextmanager
def _marker(on: Ground) -> Iterator[Callable[[], bool]]:
    """Write a file to the shared storage; gives what says whether it is there, as it was."""
    text = secrets.token_hex(_LETTERS)
    path = f"{on.cluster.plan.spec.storage.shared.path}/.gpubed-chaos-{secrets.token_hex(4)}"
    digest = hashlib.sha256(text.encode()).hexdigest()

    def head() -> SSH:
        # It may have been made anew since.
        return SSH(allocation.load(on.cluster.paths.allocation), on.cluster.paths)

    def is_there() -> bool:
        with head() as ssh:
            said = ssh.run("sudo -n sha256sum %s", path, check=False).stdout
        return said.startswith(digest)

    with head() as ssh:
        ssh.run("sudo -n tee %s > /dev/null", path, stdin=text)
    try:
        yield is_there
    finally:
        with suppress(GpubedError), head() as ssh:
            ssh.run("sudo -n rm -f %s", path)
