"""Keeps served models as they are to be: their replicas are Slurm jobs, HAProxy leads to them.

It reads models/*.json, which deploy.py writes, and replicas/*.json, and writes state.json and, where
there is monitoring, figures for Prometheus. Jobs, HAProxy's servers and files are compared with
what is wanted every second, so that it may end at any time.
"""

import json
import math
import re
import socket
import subprocess
import time
from pathlib import Path

SETTINGS = json.loads(Path("/etc/gpubed/serving/settings.json").read_text())
ROOT, HERE = Path(SETTINGS["folder"]), Path(__file__).parent
FIGURES = Path(SETTINGS["figures"])
MAP, MODELS, SLOTS = "/etc/gpubed/serving/models.map", SETTINGS["models"], SETTINGS["slots"]
BATCH, MOST_FAILURES = 64, 3
UP_S, DOWN_S = 5.0, 60.0  # of a backlog, or of none, before the number of replicas changes
SILENT_S, LEAVES_S, KILLED_S = 30.0, 3.0, 120.0


def run(*words):
    """Return a program's output."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise RuntimeError(f"{words[0]}: {done.stderr.strip()}")
    return done.stdout


def proxy(*commands):
    """Return HAProxy's answer to commands."""
    with socket.socket(socket.AF_UNIX) as door:
        door.settimeout(10)
        door.connect("/run/gpubed-serving.sock")
        door.sendall((";".join(commands) + "\n").encode())
        return b"".join(iter(lambda: door.recv(65536), b"")).decode()


def write(path, document):
    """Replace a file."""
    draft = path.with_suffix(".new")
    draft.write_text(document if isinstance(document, str) else json.dumps(document))
    draft.rename(path)


def read(folder):
    """Return the documents of a folder by name."""
    return {
        path.stem: json.loads(path.read_text()) for path in sorted((ROOT / folder).glob("*.json"))
    }


class Controller:
    """What is remembered between looks, and kept in state.json."""

    def __init__(self):
        kept = (
            json.loads((ROOT / "state.json").read_text()) if (ROOT / "state.json").exists() else {}
        )
        # By job, but numbers and failures by track, and backends by model.
        for name in ("jobs", "leaving", "slots", "numbers", "failures", "backends", "changed"):
            setattr(self, name, kept.get(name, {}))

    def look(self):
        """Compare once what is with what is wanted."""
        self.now, self.wanted = time.time(), read("models")
        rows = (
            line.split("|")
            for line in run("squeue", "-h", "--me", "--format=%i|%j|%T|%r").splitlines()
        )
        self.listed = {
            row[0]: (*row[1].split(":")[1:], *row[2:])
            for row in rows
            if row[1].startswith("serving:")
        }
        self.replicas = read("replicas")
        self._bury()
        models = {
            name: self._model(name)
            for name in {*self.wanted, *(row[0] for row in self.listed.values())}
        }
        self._route(models)
        kept = ("jobs", "leaving", "slots", "numbers", "failures", "backends", "changed")
        write(
            ROOT / "state.json",
            {"time": self.now, "models": models} | {n: getattr(self, n) for n in kept},
        )
        if FIGURES.is_dir():
            write(FIGURES / "gpubed-serving.prom", figures(models))

    def _bury(self):
        """Note why jobs ended that nobody sent away."""
        for job, key in [*self.jobs.items()]:
            if job in self.listed:
                continue
            last = self.replicas.pop(job, {})
            if job not in self.leaving:
                why = (
                    last.get("reason")
                    or f"its job ended: gpubed ssh CLUSTER -- sudo tail {ROOT}/logs/{job}.log"
                )
                count = self.failures.get(key, {"count": 0})["count"]
                self.failures[key] = {"count": count + 1, "at": self.now, "reason": why}
            for memory in (self.jobs, self.leaving, self.slots):
                memory.pop(job, None)
            (ROOT / "replicas" / f"{job}.json").unlink(missing_ok=True)

    def _ready(self, job):
        replica = self.replicas.get(job, {})
        return replica.get("state") == "ready" and self.now - replica["time"] < SILENT_S

    def _model(self, name):
        """Start and end replicas of a model; return what is known of it."""
        wanted = self.wanted.get(name, {"tracks": [], "revision": 0})
        here = [job for job, (model, *_) in self.listed.items() if model == name]
        rows, complete = [], True
        for track in wanted["tracks"]:
            key = track["key"]
            mine = [job for job in here if self.listed[job][1] == key and job not in self.leaving]
            for job in mine:  # its node or the network went
                if self.now - self.replicas.get(job, {}).get("time", self.now) > SILENT_S:
                    run("scancel", job)
            ready = [job for job in mine if self._ready(job)]
            number = self._number(track, [self.replicas[job] for job in ready])
            failure = self.failures.get(key, {"count": 0, "reason": ""})
            if (ready and self.now - failure.get("at", 0) > DOWN_S) or wanted[
                "revision"
            ] != failure.get("revision", wanted["revision"]):
                self.failures.pop(key, None)
            elif failure["count"]:
                failure["revision"] = wanted["revision"]
            for _ in range(number - len(mine) if failure["count"] < MOST_FAILURES else 0):
                self._submit(name, track)
            for job in sorted(mine, key=lambda job: (job in ready, -int(job)))[
                : max(0, len(mine) - number)
            ]:
                self._send_away(job)
            complete &= len(ready) >= track["min"]
            rows.append(self._row(track, number, mine, ready, failure))
        old = [
            job for job in here if self.listed[job][1] not in [t["key"] for t in wanted["tracks"]]
        ]
        for job in old if complete else [job for job in old if self.listed[job][2] == "PENDING"]:
            self._send_away(job)
        for job in [job for job in here if job in self.leaving]:
            gone, replica = self.now - self.leaving[job], self.replicas.get(job, {})
            if (replica.get("state") == "draining" and gone < KILLED_S) or gone < LEAVES_S:
                continue
            run(
                "scancel",
                *(() if gone > KILLED_S or not self._ready(job) else ("--batch", "--signal=TERM")),
                job,
            )
        leaving = [job for job in old if job not in self.leaving] if not complete else []
        return {
            "revision": wanted["revision"],
            "complete": complete,
            "tracks": rows,
            "former": leaving,
        }

    def _number(self, track, replicas):
        """Return how many replicas a track is to have, by its backlog."""
        key, low, high = track["key"], track["min"], track["max"]
        number = min(max(self.numbers.get(key, low), low), high)
        backlog = (
            sum(r["backlog"] for r in replicas)
            if not track.get("source")
            else max([r["backlog"] for r in replicas], default=0)
        )
        direction = (
            1
            if backlog > number * BATCH and number < high
            else -1
            if not backlog and number > low
            else 0
        )
        since = self.changed.get(key, [0, self.now])
        self.changed[key] = since = since if since[0] == direction else [direction, self.now]
        if (
            direction
            and self.now - since[1] > (UP_S if direction > 0 else DOWN_S)
            and (direction < 0 or len(replicas) >= number)
        ):
            number += direction
            self.changed[key] = [0, self.now]
        self.numbers[key] = number
        return number

    def _submit(self, name, track):
        order = ROOT / "tracks" / f"{track['key']}.json"
        write(order, {**track, "model": name, "addresses": SETTINGS["addresses"]})
        resources = [
            f"--cpus-per-task={track['cpus']}",
            *([f"--gpus={track['gpus']}"] if track["gpus"] else []),
        ]
        script = f"exec {SETTINGS['environment']}/bin/python {HERE}/replica.py {order}"
        job = run(
            *(
                "sbatch",
                "--parsable",
                "--no-requeue",
                "--ntasks=1",
                f"--job-name=serving:{name}:{track['key']}",
            ),
            *(*resources, f"--output={ROOT}/logs/%j.log", "--chdir=/", "--wrap", script),
        )
        self.jobs[job.strip().split(";")[0]] = track["key"]

    def _send_away(self, job):
        if job not in self.leaving:
            self.leaving[job] = self.now

    def _row(self, track, number, mine, ready, failure):
        shown = [self.replicas[job] for job in ready]
        waits = [self.listed[job][3] for job in mine if self.listed[job][2] == "PENDING"]
        return {
            **{name: track[name] for name in ("version", "share", "key", "source", "target")},
            "replicas": number,
            "ready": len(ready),
            "p50_s": max((r["p50_s"] for r in shown if r["p50_s"] is not None), default=None),
            "p99_s": max((r["p99_s"] for r in shown if r["p99_s"] is not None), default=None),
            "per_s": sum(r["per_s"] for r in shown),
            "backlog": max([r["backlog"] for r in shown], default=0)
            if track["source"]
            else sum(r["backlog"] for r in shown),
            "waits": waits[0] if waits else "",
            "reason": failure["reason"] or next((r["reason"] for r in shown if r["reason"]), ""),
            "failed": failure["count"] >= MOST_FAILURES,
        }

    def _route(self, models):
        """Lead requests to the ready replicas; a track has its share of them."""
        for name in [name for name in self.backends if name not in models]:
            del self.backends[name]
        for name in models:
            free = sorted({*range(MODELS)} - {*self.backends.values()})
            if name not in self.backends and free:
                self.backends[name] = free[0]
        commands, used = [], set()
        for name, number in self.backends.items():
            tracks = {track["key"]: track for track in models[name]["tracks"]}
            jobs = [
                job
                for job, row in self.listed.items()
                if row[0] == name and (self._ready(job) or job in self.slots)
            ]
            for job in jobs:
                taken = {self.slots[other] for other in jobs if other in self.slots}
                if free := sorted({*range(SLOTS)} - taken):
                    self.slots.setdefault(job, free[0])
                if job not in self.slots:
                    continue
                server, replica, key = (
                    f"m{number}/r{self.slots[job]}",
                    self.replicas.get(job),
                    self.listed[job][1],
                )
                used.add(server)
                alike = [
                    o
                    for o in jobs
                    if self.listed[o][1] == key and self._ready(o) and o not in self.leaving
                ]
                share = tracks[key]["share"] if key in tracks else 100
                weight = max(1, min(256, round(2.56 * share / max(1, len(alike))))) if share else 0
                state = "ready" if self._ready(job) and job not in self.leaving else "drain"
                if replica:
                    commands.append(
                        f"set server {server} addr {replica['address']} port {replica['port']}"
                    )
                commands += [
                    f"set server {server} weight {weight}",
                    f"set server {server} state {state}",
                ]
        entries = dict(
            line.split()[1:3] for line in proxy(f"show map {MAP}").splitlines() if line.strip()
        )
        for name, backend in entries.items():
            if backend != f"m{self.backends.get(name)}":
                commands.append(f"del map {MAP} {name}")
        commands += [
            f"add map {MAP} {name} m{number}"
            for name, number in self.backends.items()
            if entries.get(name) != f"m{number}"
        ]
        idle = re.findall(
            r"^(m\d+),(r\d+),(?:[^,]*,){15}(?!MAINT)", proxy("show stat -1 4 -1"), re.MULTILINE
        )
        commands += [f"set server {b}/{s} state maint" for b, s in idle if f"{b}/{s}" not in used]
        for first in range(0, len(commands), 30):  # HAProxy reads 16 KiB at once
            said = proxy(*commands[first : first + 30]).strip()
            if re.search("(?i)no such|can't|invalid|unknown|require", said):
                print(said, flush=True)


def figures(models):
    """Return the figures of all models in Prometheus' language."""
    lines = []
    for name, model in models.items():
        for track in model["tracks"]:
            labels = f'{{model="{name}",version="{track["version"]}"}}'
            for key, figure in (
                ("p50_s", "latency_p50_seconds"),
                ("p99_s", "latency_p99_seconds"),
                ("per_s", "rows_per_second"),
                ("backlog", "backlog"),
                ("ready", "replicas_ready"),
                ("replicas", "replicas_wanted"),
            ):
                value = track[key] if track[key] is not None else math.nan
                lines.append(f"gpubed_serving_{figure}{labels} {value}")
    return "\n".join([*lines, ""])


def main():
    """Looks every second."""
    for folder in ("models", "replicas", "tracks", "logs", "files"):
        (ROOT / folder).mkdir(mode=0o700, exist_ok=True)
    controller = Controller()
    while True:
        try:
            controller.look()
        except (OSError, RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
            print(error, flush=True)  # Slurm or HAProxy restarts
        time.sleep(1)


if __name__ == "__main__":
    main()
