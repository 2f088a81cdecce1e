"""gpubed chaos."""

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from gpubed.chaos import play
from gpubed.chaos.scenario import Ground, Held, Scenario, Unfit, named, scenarios
from gpubed.cli import completion
from gpubed.cli.display import Display
from gpubed.cli.options import ClusterName, EngineOption, Json, Yes, find
from gpubed.cli.ui import UI
from gpubed.cluster.events import event_file
from gpubed.core import runlock
from gpubed.core.errors import GpubedError, Locked, UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.core.units import parse_seconds
from gpubed.engines import stack
from gpubed.engines.stack import EngineName
from gpubed.testbeds.breaker import Harm

EXAMPLE = "gpubed chaos lab freeze-node --for 30s"
PLACE = ("Care", 60)
_LASTS = "10 s"
_SEEDS = 10_000


def command(
    name: ClusterName,
    scenario: Annotated[
        str | None,
        typer.Argument(help="What to break; --list tells.", autocompletion=completion.scenarios),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All that fit, one after another, in a drawn order.")
    ] = False,
    listing: Annotated[
        bool, typer.Option("--list", help="Say what there is and what must hold; break nothing.")
    ] = False,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="NODE",
            help="Break this node; drawn if left out.",
            autocompletion=completion.nodes,
        ),
    ] = None,
    lasts: Annotated[str, typer.Option("--for", metavar="TIME", help="How long.")] = _LASTS,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Draw the same node and order again.")
    ] = None,
    checkpoint: Annotated[
        str,
        typer.Option(metavar="FOLDER", help="Below checkpoints/: whose newest may be damaged."),
    ] = "",
    only_break: Annotated[
        bool, typer.Option("--only-break", help="Break it and leave it so.")
    ] = False,
    as_json: Json = False,
    yes: Yes = False,
    engine: EngineOption = None,
) -> int:
    """Break a node on purpose, and check that all is well again. On this machine only."""
    ui = UI(as_json)
    if (scenario is not None) + everything + listing != 1:
        raise UsageError("a scenario, --all or --list: one of them", f"gpubed chaos {name} --list")
    if only_break and everything:
        raise UsageError("--only-break leaves one thing broken, and --all would break all")
    paths = find(name)
    if listing:
        return _list(ui)
    known, seconds = scenario and named(scenario), _seconds(lasts)
    if checkpoint and known and not known.damages_checkpoints:
        raise UsageError(f"{known.name} damages no checkpoints: --checkpoint means nothing to it")
    chosen = stack.choose(engine)
    drawn = secrets.randbelow(_SEEDS) if seed is None else seed
    stage = _Stage(ui, paths, chosen, seconds, drawn, on, checkpoint, yes)
    if known and only_break:
        return stage.only_break(known)
    with _alone(paths):
        return stage.one(known) if known else stage.all()


@dataclass
class _Stage:
    """What was asked for, and where scenarios are played."""

    ui: UI
    paths: ClusterPaths
    engine: EngineName
    lasts_s: float
    seed: int
    on: str | None
    checkpoint: str
    yes: bool
    _skipped: dict[str, str] = field(default_factory=dict)

    def only_break(self, known: type[Scenario]) -> int:
        """Break, and say how it is undone."""
        ready, harm = self._prepared(known, self._ground())
        self._confirm([ready.title()])
        self._play.only_break(ready, harm)
        self.ui.document("chaos", {**_row(ready, self.seed), "by_hand": harm.by_hand})
        self.ui.say(f"{ready.node.name} is left as it is; it is undone by:")
        self.ui.say(f"  {harm.by_hand}", whole=True)
        return 0

    def one(self, known: type[Scenario]) -> int:
        """Play one scenario."""
        ready, harm = self._prepared(known, self._ground())
        self._confirm([ready.title()])
        played = self._played(ready, harm)
        self.ui.document("chaos", played.document())
        for held in played.held:
            self.ui.say(_line(held))
        verdict = "all of it holds" if played.ok else "NOT all of it holds"
        name = f"{played.scenario} on {played.node}"
        self.ui.say(f"{name}: {verdict}, after {played.seconds:.0f} s (--seed {self.seed})")
        return 0 if played.ok else 1

    def all(self) -> int:
        """Play all that fit, one after another; what one leaves broken ends it."""
        names = play.order(scenarios(), self.seed)
        fit = [name for name in names if self._fits(named(name), self._ground())]
        self._confirm([f"{len(fit)} scenarios, one after another: {', '.join(fit)}"])
        done = list[play.Played]()
        for name in fit:
            if done and not done[-1].ok and (why := self._left_broken()):
                self._skipped[name] = why
                continue
            if played := self._next(named(name)):
                done.append(played)
        ok = bool(done) and all(played.ok for played in done)
        rows = [played.document() for played in done]
        skipped = [{"scenario": name, "why": why} for name, why in self._skipped.items()]
        self.ui.document("chaos", {"seed": self.seed, "played": rows, "skipped": skipped, "ok": ok})
        self._table(done)
        return 0 if ok else 1

    def _next(self, known: type[Scenario]) -> play.Played | None:
        try:
            ready, harm = self._prepared(known, self._ground())
        except Unfit as why:
            self._skipped[known.name] = why.message
            return None
        self.ui.note(f"\n{ready.title()}")
        try:
            return self._played(ready, harm)
        except GpubedError as error:
            held = [Held("it can be played", False, error.message)]
            return play.Played(known.name, ready.node.name, self.seed, held=held)

    def _table(self, done: list[play.Played]) -> None:
        rows = [
            (
                "pass" if played.ok else "fail",
                played.scenario,
                played.node,
                f"{played.seconds:.0f} s",
                "; ".join(_line(held) for held in played.held if not held.ok),
            )
            for played in done
        ]
        rows += [("skip", name, "", "", why) for name, why in self._skipped.items()]
        self.ui.table(["", "scenario", "node", "took", "what did not hold, or why not"], rows)
        self.ui.say(f"the same again: gpubed chaos {self.paths.name} --all --seed {self.seed}")

    def _ground(self) -> Ground:
        """Look at the cluster as it is now: a node may have been made anew."""
        runlock.require_free(self.paths.state)
        return play.ground(self.paths, self.checkpoint)

    def _fits(self, known: type[Scenario], on: Ground) -> bool:
        try:
            play.cast(known, on, self.seed, self.on)
        except Unfit as why:
            self._skipped[known.name] = why.message
        return known.name not in self._skipped

    def _left_broken(self) -> str:
        try:
            play.require_whole(self.paths, self.engine)
        except GpubedError as error:
            return error.message
        return ""

    def _prepared(self, known: type[Scenario], on: Ground) -> tuple[Scenario, Harm]:
        play.require_whole(self.paths, self.engine)
        ready = play.cast(known, on, self.seed, self.on)
        return ready, ready.harm()

    def _confirm(self, what: list[str]) -> None:
        for line in what:
            self.ui.mark("update", line)
        if who := runlock.measurer(self.paths.state):
            self.ui.mark("update", f"{who} is at work on {self.paths.name}, and will feel it")
        if not self.ui.confirm("Break it?", yes=self.yes, default=False):
            raise UsageError(
                "not confirmed, so nothing was broken", "the same command with -y says yes"
            )

    @property
    def _play(self) -> play.Play:
        return play.Play(self.paths, self.engine, self.lasts_s, self.ui.note)

    def _played(self, ready: Scenario, harm: Harm) -> play.Played:
        self.ui.note(f"if this is killed, it is undone by:\n  {harm.by_hand}", whole=True)
        shown = Display(self.ui)
        with event_file(self.paths, "chaos", None) as path, shown.following(path):
            return self._play.play(ready, harm, self.seed)


@contextmanager
def _alone(paths: ClusterPaths) -> Iterator[None]:
    """Keep off whoever would repair what is broken before it was looked at.

    Raises:
        Locked: A watch is at work, or another who breaks things.
    """
    with ExitStack() as held:
        try:
            held.enter_context(runlock.locked(paths.watching, "chaos"))
        except Locked as error:
            hint = "wait for its end; to see a watch repair it: --only-break"
            raise Locked(error.message, hint) from None
        yield


def _list(ui: UI) -> int:
    found = [
        {"name": one.name, "does": one.does, "holds": [*one.promises()]}
        for one in scenarios().values()
    ]
    ui.document("chaos", {"scenarios": found})
    for one in found:
        ui.say(f"{one['name']}: {one['does']}")
        for line in one["holds"]:
            ui.say(f"  - {line}")
    return 0


def _row(ready: Scenario, seed: int) -> dict[str, Any]:
    return {"scenario": ready.name, "node": ready.node.name, "seed": seed}


def _line(held: Held) -> str:
    sign, why = ("✓", "") if held.ok else ("✗", held.why)
    return f"{sign} {held.what}" + (f": {why}" if why else "")


def _seconds(text: str) -> float:
    try:
        return parse_seconds(text, _LASTS)
    except ValueError as error:
        raise UsageError(f"--for {text!r} {error}", f"--for {_LASTS!r}") from None
