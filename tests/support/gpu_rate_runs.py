"""Runs job imagenet once for each line that it reads: a list of its words, as JSON.

    python gpu_rate_runs.py FOLDER < LINES

Each run is a process of its own, forked from one that has loaded torch and uses no GPU: to load
it takes longer than to train so few steps. Its figures are in FOLDER, below the line's number.
"""

import json
import multiprocessing
import runpy
import sys
from pathlib import Path

JOB = Path(__file__).parents[2] / "jobs" / "imagenet"


def train(out, words):
    out.mkdir()
    sys.argv = [str(JOB / "main.py"), "--out", str(out), *words]
    sys.path.insert(0, str(JOB))
    runpy.run_path(sys.argv[0], run_name="__main__")


def main():
    """Run one after the other; the first that fails ends it."""
    forked = multiprocessing.get_context("forkserver")
    forked.set_forkserver_preload(["torch", "torchvision"])
    for number, line in enumerate(sys.stdin):
        run = forked.Process(target=train, args=(Path(sys.argv[1]) / str(number), json.loads(line)))
        run.start()
        run.join()
        if run.exitcode:
            sys.exit(f"{line.strip()} ended with {run.exitcode}")


if __name__ == "__main__":
    main()
