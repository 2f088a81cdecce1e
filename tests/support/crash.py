"""Kills gpubed wherever it may be, and looks at what comes of it."""

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field

from support.cluster import labelled

# A whole `up` of two bare nodes says about 40 things in about 7 seconds.
EVENTS = 45
SECONDS = 8.0
# What Ansible takes for a changed port on three nodes; verifying comes after it.
CONFIGURING_SECONDS = 15.0


@dataclass
class Crashes:
    """A cluster whose runs are killed, and the tally."""

    cluster: object
    rng: random.Random
    tally: Counter = field(default_factory=Counter)

    def kill(self, verb):
        """Start a verb and kill it: after a number of events, or after a time.

        Returns whether it was still running then.
        """
        events = self.cluster.root / "kill.jsonl"
        events.unlink(missing_ok=True)
        options = ["--events", str(events)] if verb == "up" else []
        process = self._start(verb, "-y", *options)
        if verb == "up" and self.rng.random() < 0.5:
            self._wait_for_events(process, events, self.rng.randint(1, EVENTS))
        else:
            self._wait_for(process, self.rng.uniform(0.3, SECONDS if verb == "up" else 4.0))
        hit = self._end(process)
        self.tally[verb] += hit
        return hit

    def kill_configuring(self):
        """Kill `up` at a random time while Ansible works on the nodes."""
        events = self.cluster.root / "kill.jsonl"
        events.unlink(missing_ok=True)
        process = self._start("up", "--events", str(events))
        while process.poll() is None and not _works_on_nodes(events):
            time.sleep(0.05)
        self._wait_for(process, self.rng.uniform(0, CONFIGURING_SECONDS))
        return self._end(process)

    def look(self):
        """The state can be read, whatever happened, and agrees with itself."""
        path = self.cluster.root / f".gpubed/pulumi/.pulumi/stacks/gpubed/{self.cluster.name}.json"
        if path.exists():
            try:
                json.loads(path.read_text())
            except ValueError:
                self.tally["unreadable"] += 1

    def converge(self, count):
        """The next `up` makes it whole: every node once, nothing more to do."""
        self.cluster.call("up", "-y")
        containers = [thing for thing in labelled(self.cluster.name) if "container" in thing]
        self.tally["duplicates"] += max(0, len(containers) - count)
        assert len(containers) == count
        assert [n["state"] for n in self.cluster.json("status")["nodes"]] == ["ready"] * count
        assert self.cluster.json("plan")["changes"] == []
        found = self.cluster.json("audit")
        assert not found["unrecorded"] + found["missing"] + found["interrupted"]

    def vanish(self):
        """`down` leaves nothing on the daemon."""
        removal = self.cluster.json("down", "-y")
        assert removal["survivors"] == []
        left = labelled(self.cluster.name)
        self.tally["leaks"] += len(left)
        assert left == []

    def episode(self, kills):
        """Kill the cluster's runs a number of times, changing what is wanted in between."""
        count, hits = 2, 0
        while hits < kills:
            verb = self.rng.choice(["up", "up", "up", "down"])
            if verb == "up":
                count = self.rng.choice([1, 2, 3])
                rate = self.rng.choice(["100 Mbit/s", "200 Mbit/s"])
                self.cluster.edit(lambda spec, c=count, r=rate: _want(spec, c, r))
            hits += self.kill(verb)
            self.look()
            if self.rng.random() < 0.3:
                self.converge(count)
        self.converge(count)
        if self.rng.random() < 0.5:
            self.kill("down")
        self.vanish()

    def _start(self, verb, *words):
        return self.cluster.start(
            *(verb, self.cluster.name, *words),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _end(self, process):
        hit = process.poll() is None
        if hit:
            # Alone, as the kernel does when memory is short; or all, as a closed terminal.
            with_group = self.rng.random() < 0.5
            (os.killpg if with_group else os.kill)(process.pid, signal.SIGKILL)
        process.wait()
        return hit

    def _wait_for_events(self, process, events, count):
        while process.poll() is None:
            if events.exists() and events.read_bytes().count(b"\n") >= count:
                return
            time.sleep(0.002)

    def _wait_for(self, process, seconds):
        deadline = time.monotonic() + seconds
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)


def _works_on_nodes(events):
    return events.exists() and '"task"' in events.read_text()


def _want(spec, count, rate):
    spec["nodes"][0]["count"] = count
    spec["networks"]["experiment"]["rate"] = rate
