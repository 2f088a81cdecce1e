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
ROOT, HERE = Path(SETTINGS["folder"]), Path(__file__).parent
STATE = ROOT / "state"
FIGURES = Path("/var/lib/gpubed/metrics/gpubed-serving.prom")  # in a folder of role monitoring
MAP, MODELS, SLOTS = "/etc/gpubed/serving/models.map", SETTINGS["models"], SETTINGS["slots"]
BACKLOG, UP_S, DOWN_S = 64, 5.0, 60.0  # requests per replica; how long before its number changes
MOST_FAILURES, FORGIVEN_S = 3, 60.0
SILENT_S, LEAVES_S, KILLED_S = 30.0, 3.0, 90.0
REFUSALS = re.compile("no such|can't|invalid|unknown|unable", re.IGNORECASE)


class Job(NamedTuple):
    """A replica in Slurm's queue."""

    model: str
    key: str
    state: str
    why: str


def run(*words: str) -> str:
    """Return a program's output."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise RuntimeError(f"{words[0]}: {done.stderr.strip()}")
    return done.stdout


def proxy(*commands: str) -> str:
    """Return HAProxy's answers to commands, of which it reads 16 KiB at once."""
    said = b""
    for first in range(0, len(commands), 50):
        with socket.socket(socket.AF_UNIX) as door:
            door.settimeout(10)
            door.connect("/run/gpubed-serving.sock")
            door.sendall((";".join(commands[first : first + 50]) + "\n").encode())
            said += b"".join(iter(lambda: door.recv(65536), b""))
    return said.decode()


def write(path: Path, text: str) -> None:
    """Replace a file."""
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


def read(folder: Path) -> dict[str, Any]:
    """Return the documents of a folder by name."""
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


class Controller:
    """What is seen, and what is remembered between looks."""

    def __init__(self) -> None:
        # By job: tag of its track, time of its dismissal, server of HAProxy. By tag: failures. By
        # track: number of replicas, and since when more or fewer are needed. By model: backend.
        empty = {n: {} for n in ("tags", "leaving", "slots", "failures", "numbers", "since", "to")}
        file = STATE / "state.json"
        self.memory = (json.loads(file.read_text()) if file.exists() else {}).get("memory", empty)

    def look(self) -> None:
        """Compare once what is with what is to be."""
        self.now, wanted, self.replicas = (
            time.time(),
            read(ROOT / "models"),
            read(STATE / "replicas"),
        )
        queue = run("squeue", "--noheader", "--me", "--format=%i|%j|%T|%r").splitlines()
        rows = (line.split("|") for line in queue if "|serving:" in line)
        self.jobs = {job: Job(*name.split(":")[1:], *more) for job, name, *more in rows}
        self._bury()
        names = sorted({*wanted, *(job.model for job in self.jobs.values())})
        nothing = {"tracks": [], "revision": 0}
        models = {name: self._model(name, **wanted.get(name, nothing)) for name in names}
        self._route(models)
        state = {"time": self.now, "models": models, "memory": self.memory}
        write(STATE / "state.json", json.dumps(state))
        if FIGURES.exists():
            with FIGURES.open("r+") as file:
                file.write(_figures(models))
                file.truncate()

    def _bury(self) -> None:
        """Forget jobs that ended; remember why, if they were not dismissed."""
        for job in [job for job in self.memory["tags"] if job not in self.jobs]:
            tag = self.memory["tags"][job]
            if job not in self.memory["leaving"]:
                reason = self.replicas.get(job, {}).get("reason")
                reason = reason or f"its job {job} ended; its log: {STATE}/logs/{job}.log"
                count = self.memory["failures"].get(tag, {"count": 0})["count"] + 1
                self.memory["failures"][tag] = {"count": count, "at": self.now, "reason": reason}
            for name in ("tags", "leaving", "slots"):
                self.memory[name].pop(job, None)
            (STATE / "replicas" / f"{job}.json").unlink(missing_ok=True)

    def _ready(self, job: str) -> bool:
        replica = self.replicas.get(job, {"state": ""})
        return replica["state"] == "ready" and job not in self.memory["leaving"]

    def _model(self, name: str, tracks: Any, revision: int, **_: Any) -> dict[str, Any]:
        """Start and dismiss replicas of a model; return what is known of it."""
        here = {job: one for job, one in self.jobs.items() if one.model == name}
        rows = [self._track(name, track, f"{track['key']}:{revision}", here) for track in tracks]
        # What was served before goes on until all that is wanted now is ready.
        complete = all(
            row["ready"] >= track["min"] for row, track in zip(rows, tracks, strict=True)
        )
        keys = {track["key"] for track in tracks}
        old = [job for job in here if here[job].key not in keys]
        for job in (job for job in old if complete or here[job].state == "PENDING"):
            self.memory["leaving"].setdefault(job, self.now)
        for job in here.keys() & self.memory["leaving"].keys():
            gone, silent = self.now - self.memory["leaving"][job], job not in self.replicas
            if gone > KILLED_S or silent:
                run("scancel", job)
            elif gone > LEAVES_S and self.replicas[job]["state"] == "ready":
                run("scancel", "--batch", "--signal=TERM", job)
        return {"revision": revision, "complete": complete, "former": old, "tracks": rows}

    def _track(self, name: str, track: Any, tag: str, here: dict[str, Job]) -> dict[str, Any]:
        """Start or dismiss replicas of a track; return what is known of it."""
        stays = (job for job in here if job not in self.memory["leaving"])
        mine = [job for job in stays if here[job].key == track["key"]]
        ready = [job for job in mine if self._ready(job)]
        seen = [self.replicas[job] for job in ready]
        # All replicas tell the backlog of their stream, but only their own of requests.
        backlog = (max if track["source"] else sum)([one["backlog"] for one in seen] or [0])
        failure = self.memory["failures"].get(tag, {"count": 0, "reason": "", "at": 0})
        if ready and self.now - failure["at"] > FORGIVEN_S:
            self.memory["failures"].pop(tag, None)
        number = self._number(track, backlog, len(ready))
        for job in mine:  # its node does not answer
            if self.now - self.replicas.get(job, {"time": self.now})["time"] > SILENT_S:
                run("scancel", job)
        if failure["count"] < MOST_FAILURES:
            for _ in range(number - len(mine)):
                self._submit(name, track, tag)
        for job in sorted(mine, key=int)[number:]:
            self.memory["leaving"][job] = self.now
        waits = [here[job].why for job in mine if here[job].state == "PENDING"]
        reasons = [failure["reason"], *(one["reason"] for one in seen)]
        p50s, p99s = ([s[n] for s in seen if s[n] is not None] for n in ("p50_s", "p99_s"))
        return {
            **{name: track[name] for name in ("version", "key", "share", "source", "target")},
            "replicas": number,
            "ready": len(ready),
            "backlog": backlog,
            "p50_s": max(p50s, default=None),
            "p99_s": max(p99s, default=None),
            "per_s": sum(one["per_s"] for one in seen),
            "waits": next(iter(waits), ""),
            "reason": next(filter(None, reasons), ""),
            "failed": failure["count"] >= MOST_FAILURES,
        }

    def _number(self, track: Any, backlog: int, ready: int) -> int:
        """Return how many replicas there are to be; a backlog, or none for a while, changes it."""
        key, low, high = track["key"], track["min"], track["max"]
        number = min(max(self.memory["numbers"].get(key, low), low), high)
        step = (backlog > BACKLOG * number and ready == number < high) - (
            not backlog and number > low
        )
        since = self.memory["since"].setdefault(key, [step, self.now])
        if since[0] != step or self.now - since[1] > (UP_S if step > 0 else DOWN_S):
            number += step if since[0] == step else 0
            self.memory["since"][key] = [step, self.now]
        self.memory["numbers"][key] = number
        return number

    def _submit(self, name: str, track: Any, tag: str) -> None:
        order = STATE / "tracks" / f"{track['key']}.json"
        write(order, json.dumps({**track, "model": name, "addresses": SETTINGS["addresses"]}))
        script = f"exec {SETTINGS['environment']}/bin/python {HERE}/replica.py {order}"
        gpus = [f"--gpus={track['gpus']}"] if track["gpus"] else []
        job = run(
            *("sbatch", "--parsable", "--no-requeue", f"--job-name=serving:{name}:{track['key']}"),
            *("--ntasks=1", f"--cpus-per-task={track['cpus']}", *gpus, "--chdir=/"),
            *(f"--output={STATE}/logs/%j.log", "--wrap", script),
        )
        self.memory["tags"][job.strip().split(";")[0]] = tag

    def _route(self, models: dict[str, Any]) -> None:
        """Lead requests to the ready replicas; those of a track have its share together."""
        backends, commands = self.memory["to"], list[str]()
        for name in [name for name in backends if name not in models]:
            commands += self._servers(backends.pop(name), {})
        for name, model in models.items():
            free = [number for number in range(MODELS) if number not in backends.values()]
            if name in backends or free:
                backend = backends.setdefault(name, *free[:1])
                shares = {track["key"]: track["share"] for track in model["tracks"]}
                commands += self._servers(backend, self._weights(name, shares))
        entries = dict(re.findall(r"^\S+ (\S+) (m\d+)$", proxy(f"show map {MAP}"), re.MULTILINE))
        wanted = {name: f"m{number}" for name, number in backends.items()}
        commands += [f"del map {MAP} {name}" for name, _ in entries.items() - wanted.items()]
        commands += [f"add map {MAP} {name} {to}" for name, to in wanted.items() - entries.items()]
        if refusals := [line for line in proxy(*commands).splitlines() if REFUSALS.search(line)]:
            logging.warning("HAProxy: %s", refusals[0])

    def _weights(self, name: str, shares: dict[str, int]) -> dict[str, int]:
        """Return the weight of each replica that has an address; 0 drains it."""
        mine = {job: one.key for job, one in self.jobs.items() if one.model == name}
        ready = [mine[job] for job in mine if self._ready(job)]
        weights = {}
        for job, key in mine.items():
            if self.replicas.get(job, {}).get("port"):
                weight = round(2.56 * shares.get(key, 100) / max(ready.count(key), 1))
                weights[job] = max(weight, 1) if self._ready(job) else 0
        return weights

    def _servers(self, backend: int, weights: dict[str, int]) -> list[str]:
        """Return commands after which a backend has these replicas as servers, and no others."""
        slots = self.memory["slots"]
        for job in weights.keys() - slots.keys():
            taken = {slots[other] for other in weights if other in slots}
            if free := [slot for slot in range(SLOTS) if slot not in taken]:
                slots[job] = free[0]
        commands = []
        for slot in range(SLOTS):
            server = f"set server m{backend}/r{slot}"
            job = next((job for job in weights if slots.get(job) == slot), None)
            if job:
                to, weight = self.replicas[job], weights[job]
                commands.append(f"{server} addr {to['address']} port {to['port']}")
                commands += [f"{server} weight {weight}"] if weight else []
            commands.append(
                f"{server} state {'maint' if not job else 'ready' if weight else 'drain'}"
            )
        return commands


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
