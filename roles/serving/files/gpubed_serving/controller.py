"""Keeps served models as they are to be: replicas are Slurm jobs, and HAProxy leads to them.

Every second it compares models/*.json, which deploy.py writes, with the queue, HAProxy and
state/replicas/*.json, and writes state/state.json: what `gpubed serve --status` shows, and what it
remembers.
"""

import json
import logging
import re
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

SETTINGS = json.loads(Path("/etc/gpubed/serving/settings.json").read_text())
ROOT, CODE = Path(SETTINGS["folder"]), Path(__file__).parents[1]
STATE = ROOT / "state"
FIGURES = Path("/var/lib/gpubed/metrics/gpubed-serving.prom")  # in a folder of role monitoring
MAP, MODELS, SLOTS = "/etc/gpubed/serving/models.map", SETTINGS["models"], SETTINGS["slots"]
BACKLOG, UP_S, DOWN_S = 64, 5.0, 60.0  # requests per replica; how long before its number changes
MOST_FAILURES = 3  # of those that Slurm remembers, for five minutes
SILENT_S, KILLED_S = 30.0, 90.0
REFUSALS = re.compile(".*(no such|can't|invalid|unknown|unable).*", re.IGNORECASE)


class Job(NamedTuple):
    """A replica in Slurm's queue; `key` and `revision` are of what it was started for."""

    model: str
    key: str
    revision: str
    state: str
    why: str


def run(*words: str) -> str:
    """Return a program's output; raise `RuntimeError` if it fails."""
    done = subprocess.run(words, capture_output=True, timeout=60, check=False)
    if done.returncode:
        raise RuntimeError(f"{words[0]}: {done.stderr.decode().strip()}")
    return done.stdout.decode(errors="replace")


def jobs(*states: str) -> dict[str, Job]:
    """Return the replicas in Slurm's queue: those that have not ended, or that are in a state."""
    rows = run("squeue", "--noheader", "--me", "--format=%i|%j|%k|%T|%r", *states).splitlines()
    fields = [row.split("|") for row in rows if "|serving:" in row]
    return {job: Job(*name.split(":")[1:], *more) for job, name, *more in fields}


def size(track: dict[str, Any]) -> list[str]:
    """Return what a replica takes of a node, as options of sbatch."""
    gpus = [f"--gpus={track['gpus']}"] if track["gpus"] else []
    return ["--ntasks=1", f"--cpus-per-task={track['cpus']}", *gpus]


def proxy(*commands: str) -> str:
    """Return HAProxy's answers to commands, of which it reads 16 KiB at once."""
    with socket.socket(socket.AF_UNIX) as door:
        door.settimeout(10)
        door.connect("/run/gpubed-serving.sock")
        door.sendall((";".join(commands) + "\n").encode())
        said = b"".join(iter(lambda: door.recv(65536), b"")).decode()
    if refused := REFUSALS.search(said):
        logging.warning("HAProxy: %s", refused[0])
    return said


def write(path: Path, document: Any) -> None:
    """Replace a file."""
    path.with_suffix(".new").write_text(json.dumps(document))
    path.with_suffix(".new").rename(path)


def read(folder: Path) -> dict[str, Any]:
    """Return the documents of a folder by name."""
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


class Controller:
    """What is seen, and what is remembered between looks."""

    def __init__(self) -> None:
        # By job: time of its dismissal, server of HAProxy. By track: number of replicas, how many
        # more are needed, and since when. By model: backend.
        file, names = STATE / "state.json", ("leaving", "slots", "scale", "to")
        known = json.loads(file.read_text())["memory"] if file.exists() else {}
        self.memory: dict[str, Any] = {name: known.get(name, {}) for name in names}

    def look(self) -> None:
        """Compare once what is with what is to be."""
        self.now = time.time()
        wanted, self.jobs = read(ROOT / "models"), jobs()
        # A job that ended by itself and was not told to has failed, too.
        self.ended = jobs("--states=COMPLETED,FAILED,OUT_OF_MEMORY")
        for name in ("leaving", "slots"):
            known = self.memory[name].items()
            self.memory[name] = {j: v for j, v in known if j in self.jobs or j in self.ended}
        seen = read(STATE / "replicas")
        for job in seen.keys() - self.jobs.keys():
            (STATE / "replicas" / f"{job}.json").unlink()
        self.replicas = {job: replica for job, replica in seen.items() if job in self.jobs}
        names = sorted({*wanted, *(job.model for job in self.jobs.values())})
        models = {name: self._model(name, **wanted.get(name, {})) for name in names}
        self._route(models)
        write(STATE / "state.json", {"time": self.now, "models": models, "memory": self.memory})
        if FIGURES.exists():
            with FIGURES.open("r+") as figures:
                figures.write(_figures(models))
                figures.truncate()

    def _model(self, name: str, tracks: Any = (), revision: int = 0, **_: Any) -> dict[str, Any]:
        """Start and dismiss replicas of a model; return what is known of it."""
        here = {job: one for job, one in self.jobs.items() if one.model == name}
        rows = [self._track(name, revision, track, here) for track in tracks]
        # What was served before goes on until all that is wanted now is ready.
        complete = all(row["ready"] >= row["min"] for row in rows)
        keys, leaving = {track["key"] for track in tracks}, self.memory["leaving"]
        old = [job for job in here if here[job].key not in keys]
        for job in (job for job in old if complete or here[job].state == "PENDING"):
            leaving.setdefault(job, self.now)
        for job in here.keys() & leaving.keys():
            drains = job in self.replicas and self.now - leaving[job] < KILLED_S
            run("scancel", *(["--batch", "--signal=TERM"] if drains else []), job)
        return {"revision": revision, "complete": complete, "former": old, "tracks": rows}

    def _track(self, name: str, revision: int, track: Any, here: dict[str, Job]) -> dict[str, Any]:
        """Start or dismiss replicas of a track; return what is known of it."""
        key, leaving = track["key"], self.memory["leaving"]
        mine = [job for job in here if here[job].key == key and job not in leaving]
        seen = [self.replicas[job] for job in mine if job in self.replicas]
        # All replicas tell the backlog of their stream, but only their own of requests.
        backlog = (max if track["source"] else sum)([one["backlog"] for one in seen] or [0])
        number = self._number(track, backlog, len(seen))
        tag = (key, str(revision))
        failed = [j for j, one in self.ended.items() if one[1:3] == tag and j not in leaving]
        if len(failed) < MOST_FAILURES:
            for _ in range(number - len(mine)):
                self._submit(name, revision, track)
        for job in sorted(mine, key=int)[number:]:
            leaving[job] = self.now
        for job in mine:  # its node does not answer
            if self.now - self.replicas.get(job, {"time": self.now})["time"] > SILENT_S:
                run("scancel", job)
        waits = [here[job].why for job in mine if here[job].state == "PENDING"]
        reasons = [_end(max(failed, key=int))] if failed else [one["reason"] for one in seen]
        p50s, p99s = ([s[n] for s in seen if s[n] is not None] for n in ("p50_s", "p99_s"))
        return {
            **{n: track[n] for n in ("version", "key", "share", "min", "source", "target")},
            "replicas": number,
            "ready": len(seen),
            "backlog": backlog,
            "p50_s": max(p50s, default=None),
            "p99_s": max(p99s, default=None),
            "per_s": sum(one["per_s"] for one in seen),
            "waits": next(iter(waits), ""),
            "reason": next(filter(None, reasons), ""),
            "failed": len(failed) >= MOST_FAILURES,
        }

    def _number(self, track: Any, backlog: int, ready: int) -> int:
        """Return how many replicas there are to be; a backlog, or none for a while, changes it."""
        key, low, high = track["key"], track["min"], track["max"]
        number, step, since = self.memory["scale"].get(key, [low, 0, self.now])
        number = min(max(number, low), high)
        more = backlog > BACKLOG * number and ready == number < high
        wanted = 1 if more else -1 if not backlog and number > low else 0
        if wanted != step:
            step, since = wanted, self.now
        elif self.now - since > (UP_S if step > 0 else DOWN_S):
            number, since = number + step, self.now
        self.memory["scale"][key] = [number, step, since]
        return number

    def _submit(self, name: str, revision: int, track: Any) -> None:
        order = STATE / "tracks" / f"{track['key']}.json"
        write(order, {**track, "model": name, "addresses": SETTINGS["addresses"]})
        python = f"{track['environment']}/bin/python"
        run(
            *("sbatch", "--no-requeue", *size(track), f"--comment={revision}"),
            f"--job-name=serving:{name}:{track['key']}",
            f"--export=ALL,OMP_NUM_THREADS={track['cpus']}",
            f"--chdir={CODE}",
            f"--output={STATE}/logs/%j.log",
            f"--wrap=exec {python} -m gpubed_serving.replica {order}",
        )

    def _route(self, models: dict[str, Any]) -> None:
        """Lead requests to the ready replicas; those of a track have its share together."""
        backends = self.memory["to"]
        for name in models.keys() - backends.keys():
            free = {*range(MODELS)} - {*backends.values()}
            backends |= {name: min(free)} if free else {}
        for name, backend in backends.items():
            tracks = models[name]["tracks"] if name in models else []
            self._lead(name, backend, {track["key"]: track["share"] for track in tracks})
        self.memory["to"] = {name: to for name, to in backends.items() if name in models}
        entries = dict(re.findall(r"^\S+ (\S+) (m\d+)$", proxy(f"show map {MAP}"), re.MULTILINE))
        wanted = {name: f"m{number}" for name, number in self.memory["to"].items()}
        changes = [f"del map {MAP} {name}" for name, _ in entries.items() - wanted.items()]
        changes += [f"add map {MAP} {name} {to}" for name, to in wanted.items() - entries.items()]
        if changes:
            proxy(*changes)

    def _lead(self, name: str, backend: int, shares: dict[str, int]) -> None:
        """Give a backend a model's replicas as its only servers."""
        slots, leaving = self.memory["slots"], self.memory["leaving"]
        mine = [job for job in self.replicas if self.jobs[job].model == name]
        ready = [self.jobs[job].key for job in mine if job not in leaving]
        for job in mine:
            if slots.get(job) is None:
                free = {*range(SLOTS)} - {slots.get(other) for other in mine}
                slots[job] = min(free, default=None)
        servers, commands = {slots[job]: job for job in mine}, list[str]()
        for slot in range(SLOTS):
            server, job, state = f"set server m{backend}/r{slot}", servers.get(slot), "maint"
            if job:
                state = "drain" if job in leaving else "ready"
                to, key = self.replicas[job], self.jobs[job].key
                weight = round(2.56 * shares.get(key, 100) / max(ready.count(key), 1))
                commands.append(f"{server} addr {to['address']} port {to['port']}")
                commands.append(f"{server} weight {max(weight, 1)}")
            commands.append(f"{server} state {state}")
        proxy(*commands)


def _end(job: str) -> str:
    """Return how a replica ended, in its own last words."""
    log = STATE / "logs" / f"{job}.log"
    said = run("tail", "--bytes=2000", str(log)).split("\n") if log.exists() else []
    last = next((line for line in reversed(said) if line.strip()), "it says nothing")
    return f"its job {job} ended: {last.strip()}; its log: {log}"


def _figures(models: dict[str, Any]) -> str:
    """Return figures in Prometheus' language."""
    names = ("p50_s", "p99_s", "per_s", "backlog", "ready", "replicas")
    return "".join(
        f'gpubed_serving_{figure}{{model="{name}",version="{track["version"]}"}} {track[figure]}\n'
        for figure in names
        for name, model in models.items()
        for track in model["tracks"]
        if track[figure] is not None
    )


def main() -> None:
    """Looks every second."""
    for folder in ("replicas", "tracks", "logs"):
        (STATE / folder).mkdir(mode=0o700, exist_ok=True)
    controller = Controller()
    while True:
        try:
            controller.look()
        except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
            logging.warning("%s", error)  # Slurm or HAProxy restarts
        time.sleep(1)


if __name__ == "__main__":
    main()
