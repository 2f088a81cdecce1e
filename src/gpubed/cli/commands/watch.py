"""gpubed watch."""

import time

from typer import Option

from gpubed.cli.display import Display
from gpubed.cli.options import ClusterName, EngineOption, find, named, seconds
from gpubed.cli.ui import UI
from gpubed.cluster import watch, watch_unit
from gpubed.cluster.watch_memory import Event
from gpubed.core import runlock
from gpubed.core.errors import UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.engines import stack

EXAMPLE = "gpubed watch lab"
PLACE = ("Care", 40)
_SHORTEST_S = 5.0


def command(
    name: ClusterName,
    every: str = Option("60 s", "--every", metavar="TIME", help="Time between two looks."),
    repairs: int = Option(5, "--repairs", min=0, help="The most repairs within 24 hours."),
    once: bool = Option(False, "--once", help="Look once, for a cron job."),
    install: bool = Option(False, "--install", help="Run it as a service of your systemd."),
    remove: bool = Option(False, "--remove", help="Undo --install."),
    as_json: bool = Option(False, "--json", help="Print one JSON object per event on stdout."),
    engine: EngineOption = None,
) -> int:
    """Repair the cluster, renew its lease, and log why. Repairs never delete data."""
    if once + install + remove > 1:
        raise UsageError("--once, --install and --remove exclude each other")
    ui, wait_s = UI(as_json), seconds("--every", every, "60 s")
    if wait_s < _SHORTEST_S:
        raise UsageError(f"--every {every!r} is less than {_SHORTEST_S:g} s", "--every '60 s'")
    if remove:  # even if the cluster no longer exists
        unit = watch_unit.remove(named(name))
        ui.document("watch", {"unit": unit and str(unit)})
        ui.say(f"removed {unit}" if unit else "there was nothing to remove", whole=True)
        return 0
    paths, chosen = find(name), stack.choose(engine)
    if install:
        return _install(ui, paths, every, repairs, engine)

    def show(event: Event) -> None:
        ui.document("watch", event.document(), indent=None)
        ui.say(event.line, whole=True)

    watched = watch.Watch(paths, chosen, repairs, show, lambda path: Display(ui).following(path))
    if watched.is_over:
        watched.look()
        return 0  # without the lock, which would create the cluster's folder again
    with runlock.locked(paths.watching, "watch"):
        if once:
            return 1 if watched.look() == "amiss" else 0
        watched.start(wait_s)
        try:
            while (result := watched.try_look())[0] != "gone":
                state = f"watching {paths.name}: {result[0]} at {time.strftime('%H:%M:%S')}"
                with ui.working(f"{state}, looked at again every {wait_s:g} s"):
                    time.sleep(max(wait_s, result[1]))
        except KeyboardInterrupt:
            watched.journal.tell("ended", "interrupted")
            raise
    return 0


def _install(ui: UI, paths: ClusterPaths, every: str, repairs: int, engine: str | None) -> int:
    options = ["--every", every, "--repairs", str(repairs)]
    options += ["--engine", engine] if engine else []
    unit = watch_unit.install(paths, options)
    ui.document("watch", {"unit": str(unit)})
    ui.say(f"{unit.name} runs; its log is {paths.logs / 'watch.log'}", whole=True)
    if not watch_unit.lingers():
        ui.note("it ends when you log out; to keep it running: loginctl enable-linger")
    if keys := ", ".join(watch_unit.keys_of_agents(paths)):
        ui.note(
            f"nodes are reached with {keys} from an SSH agent; once that agent ends, as most do "
            "when you log out, they are out of reach; a key without a passphrase needs no agent"
        )
    return 0
