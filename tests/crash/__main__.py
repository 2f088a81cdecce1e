"""Kills gpubed again and again: `python -m tests.crash --kills 100 --configuring 10`.

Kills of bare clusters hit the allocation; `--configuring` kills hit a whole `up`
while Ansible works. Prints a tally and exits with 1 at the first thing that is wrong,
leaving the project folder of that episode for a look.
"""

import argparse
import itertools
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.cluster import Cluster, unique
from support.crash import Crashes

KILLS_PER_EPISODE = 5
BARE = {
    "nodes": [{"name": "node", "count": 2, "machine": {"cpus": 1, "memory": "512 MiB"}}],
    "configure": False,
}


def project(seed, **changes):
    folder = Path(tempfile.mkdtemp(prefix=f"gpubed-crash-{seed}-"))
    return Cluster(folder, unique(f"crash-{seed}"), **changes)


def allocating(kills, seed, tally):
    while tally["up"] + tally["down"] < kills:
        Crashes(project(seed, **BARE), random.Random(seed), tally).episode(KILLS_PER_EPISODE)
        print(f"seed {seed}: {dict(tally)}", flush=True)
        seed += 1


def configuring(kills, seed, tally):
    crashes = Crashes(project(seed), random.Random(seed), tally)
    for port in itertools.count(8900):
        if tally["configuring"] >= kills:
            break
        # Else there would be nothing to configure.
        crashes.cluster.edit(lambda spec, p=port: spec["services"]["jupyterlab"].update(port=p))
        tally["configuring"] += crashes.kill_configuring()
        crashes.look()
        crashes.converge(3)
        print(f"{dict(tally)}", flush=True)
    assert crashes.cluster.json("run", "digits")["world_size"] == 3
    crashes.vanish()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--configuring", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    started, tally = time.monotonic(), Counter(leaks=0, duplicates=0, unreadable=0)
    allocating(arguments.kills, arguments.seed, tally)
    if arguments.configuring:
        configuring(arguments.configuring, arguments.seed, tally)
    print(f"done in {time.monotonic() - started:.0f} s: {dict(tally)}")


if __name__ == "__main__":
    main()
