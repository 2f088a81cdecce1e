"""Speed, as ratios measured in one run: `make bench`.

Needs a cluster that is up (CLUSTER, by default lab). Each figure is printed with
its target; a target that is missed is a finding, not a failure, since machines
are noisy. What cannot be measured here says why.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest does

from gpubed.configuration.configure import environment
from gpubed.core.paths import Project
from gpubed.engines.stack import choose
from gpubed.spec.clusterspec import model
from gpubed.spec.plan import plan
from support import growth, kept, time_of_up
from support.cluster import Cluster, unique
from support.scenes import Scenes, by_cli

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
CLUSTER = os.environ.get("CLUSTER", "lab")
ROUNDS = int(os.environ.get("ROUNDS", "3"))


@dataclass(frozen=True)
class Row:
    """One line of the result; `ratio` is None where nothing could be measured."""

    what: str
    figures: str
    ratio: float | None
    target: str


def seconds(command: list[str], variables: dict[str, str] | None = None) -> float:
    """Return how long a command takes; it must succeed."""
    started = time.monotonic()
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **(variables or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return time.monotonic() - started


def alternate(one: Callable[[], float], other: Callable[[], float]) -> tuple[float, float]:
    """Return the medians of two measurements made in turn, so that both meet the same noise."""
    pairs = [(one(), other()) for _ in range(ROUNDS)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def playbook(variables: dict[str, str]) -> float:
    """Return the time of a playbook run that changes nothing."""
    inventory = str(Project(ROOT).cluster(CLUSTER).inventory)
    return seconds(
        [str(BIN / "ansible-playbook"), "-i", inventory, "playbooks/site.yml"], variables
    )


def plain() -> dict[str, str]:
    """Return an environment in which ansible.cfg stands at its defaults, but for the paths."""
    folder = Path(tempfile.mkdtemp())
    config = folder / "ansible.cfg"
    config.write_text(
        f"[defaults]\nroles_path = {ROOT}/roles\naction_plugins = {ROOT}/playbooks/action_plugins\n"
        "[inventory]\nignore_patterns = ^cluster\\.ya?ml$, \\.md$\n"
    )
    return {"ANSIBLE_CONFIG": str(config)}


def configuration() -> Iterator[Row]:
    """Compare an unchanged `up` and our playbook run with Ansible at its defaults."""
    ours, defaults = alternate(lambda: playbook(environment()), lambda: playbook(plain()))
    yield Row(
        "playbook that changes nothing / Ansible at its defaults",
        f"{ours:.1f} s / {defaults:.1f} s",
        ours / defaults,
        "≤ 1/3",
    )
    up = statistics.median(seconds([str(BIN / "gpubed"), "up", CLUSTER]) for _ in range(ROUNDS))
    yield Row(
        "`up` that changes nothing / Ansible at its defaults",
        f"{up:.1f} s / {defaults:.1f} s",
        up / defaults,
        "≤ 1/20",
    )


def help_of_all() -> Iterator[Row]:
    """Ask for the list of verbs, which the tab key asks for as well."""
    took = statistics.median(seconds([str(BIN / "gpubed"), "--help"]) for _ in range(ROUNDS))
    yield Row("`gpubed --help`", f"{took:.2f} s", None, "≤ 0.25 s")


def planning() -> Iterator[Row]:
    """Plan 1,000 nodes and 250; linear growth gives 4."""

    def cost(count: int) -> float:
        document = {"version": 1, "name": "bench", "backend": {"type": "local"}}
        spec = model().model_validate({**document, "nodes": [{"count": count}]})
        before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
        for _ in range(5):
            plan(spec)
        return (resource.getrusage(resource.RUSAGE_SELF).ru_utime - before) / 5

    small, large = cost(250), cost(1000)
    yield Row(
        "plan, 1,000 nodes / 250 nodes",
        f"{large:.3f} s / {small:.3f} s of CPU",
        large / small,
        "≈ 4, under 2 s",
    )


def growing() -> Iterator[Row]:
    """Check, plan and write the inventory of clusters of 10 to 1,000 nodes; keep the figures."""
    load = f"{os.getloadavg()[0]:.1f}"
    with tempfile.TemporaryDirectory() as folder:
        found = growth.measure(Path(folder))
    growth.keep(found, load)
    (_, before), (_, small), (_, large) = sorted(found.items())
    # What every start costs, whatever the cluster, is in none of the differences.
    added = growth.total(large) - growth.total(small)
    yield Row(
        "check, plan and configure --files-only: (1,000 - 100) / (100 - 10) nodes",
        f"{growth.total(large):.1f} s of CPU for 1,000, "
        f"{max(cost.memory for cost in large.values()):.0f} MB",
        added / (growth.total(small) - growth.total(before)),
        "≈ 10: linear; under 5 s and 500 MB",
    )


def coming_up() -> Iterator[Row]:
    """Bring a new cluster of 3 nodes up, and keep where its time went."""
    load = f"{os.getloadavg()[0]:.1f}"
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder), unique("bench"))
        told = Path(folder) / "events.jsonl"
        try:
            cluster.call("up", "--events", str(told))
            found = time_of_up.profile(map(json.loads, told.read_text().splitlines()))
        finally:
            cluster.call("down", "-y", rc=None)
    time_of_up.keep(found, load)
    slowest = ", ".join(f"{role} {took:.0f} s" for role, took in [*found["roles"].items()][:4])
    yield Row("new cluster of 3 nodes", f"{found['total']:.0f} s; {slowest}", None, "≤ 60 s")


def engine() -> Iterator[Row]:
    """Let both engines look at 200 unchanged resources, and ours at four times 250."""
    with tempfile.TemporaryDirectory() as folder:
        yield from _against_the_cli(Scenes(Path(folder)))
    cost = {}
    for count in (250, 1000):
        with tempfile.TemporaryDirectory() as folder:
            scenes = _filled(Scenes(Path(folder)), count)
            cost[count] = statistics.median(_by_engine(scenes) for _ in range(ROUNDS))
    yield Row(
        "unchanged up, embedded engine, 1,000 / 250 resources",
        f"{cost[1000]:.1f} s / {cost[250]:.1f} s",
        cost[1000] / cost[250],
        "≤ 4: linear or better",
    )


def _against_the_cli(scenes: Scenes) -> Iterator[Row]:
    what = "unchanged up of 200 resources, embedded engine / Pulumi CLI"
    if choose(None) == "embedded":
        yield Row(what, "skipped: no Pulumi CLI on PATH", None, "≤ 0.6")
        return
    _filled(scenes, 200)
    ours, cli = alternate(lambda: _by_engine(scenes), lambda: _by_cli(scenes))
    yield Row(what, f"{ours:.1f} s / {cli:.1f} s", ours / cli, "≤ 0.6")


def _filled(scenes: Scenes, count: int) -> Scenes:
    scenes.set(*({"name": f"r{i}", "props": {"number": i}} for i in range(count)))
    scenes.engine().up()
    return scenes


def _by_engine(scenes: Scenes) -> float:
    return seconds(scenes.command(), scenes.environment)


def _by_cli(scenes: Scenes) -> float:
    started = time.monotonic()
    ok, changes = by_cli(scenes, "up")
    if not ok or set(changes) != {"same"}:
        raise SystemExit(f"the CLI did not find everything unchanged: {changes} {scenes.output}")
    return time.monotonic() - started


def training() -> Iterator[Row]:
    """Train with `gpubed run` and with the same script started by hand, on all nodes."""
    rates: dict[str, list[float]] = {"gpubed": [], "hand": []}
    for _ in range(ROUNDS):
        rates["gpubed"].append(run_job("digits")["images_per_s"])
        rates["hand"].append(by_hand())
    ours, hand = (statistics.median(rates[name]) for name in ("gpubed", "hand"))
    figures = f"{ours:.0f} / {hand:.0f} images/s"
    yield Row("training through gpubed / by hand", figures, ours / hand, "≥ 0.98")


def run_job(name: str) -> dict[str, float]:
    command = [str(BIN / "gpubed"), "run", CLUSTER, name, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    document: dict[str, float] = json.loads(done.stdout)
    return document


def by_hand() -> float:
    """Start the training on the head with horovodrun alone; returns images per second."""
    config = str(Project(ROOT).cluster(CLUSTER).ssh_config)
    folder = "/shared/runs/bench-by-hand"
    subprocess.run(["ssh", "-F", config, "head", f"rm -rf {folder} && mkdir {folder}"], check=True)
    copy = [
        "scp",
        "-qrF",
        config,
        *map(str, (ROOT / "jobs" / "digits").glob("*.py")),
        f"head:{folder}",
    ]
    subprocess.run(copy, check=True)
    start = f"GPUBED_RUN_DIR={folder} gpubed-horovodrun -- python main.py"
    command = f"cd {folder} && {start} >&2 && cat metrics.json"
    done = subprocess.run(
        ["ssh", "-F", config, "head", command], capture_output=True, text=True, check=True
    )
    return float(json.loads(done.stdout)["images_per_s"])


def collective() -> Iterator[Row]:
    """Compare the allreduce with what the declared link allows."""
    found = run_job("allreduce")
    figures = f"{found['busbw_bps'] / 1e6:.0f} Mbit/s"
    yield Row("allreduce / 0.94 · declared rate", figures, found["ratio"], "≥ 0.9")


def main() -> None:
    """Print the machine and the rows."""
    # As a user's Python does, ours keeps what it compiled.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    print(f"{platform.platform()}, {kept.machine()}, Python {platform.python_version()}")
    print(f"load {os.getloadavg()[0]:.1f} at the start; medians of {ROUNDS}; cluster {CLUSTER}\n")
    for part in (
        help_of_all,
        planning,
        growing,
        coming_up,
        engine,
        configuration,
        training,
        collective,
    ):
        for row in part():
            ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
            print(f"{row.what:58} {ratio:>7}  (target {row.target})  {row.figures}", flush=True)


if __name__ == "__main__":
    main()
