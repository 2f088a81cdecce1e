"""Fills a dataset from a stream and writes `metrics.json`."""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import os
import sys
import time
from pathlib import Path

from dataset import Dataset

OWN = Path("~/.config/gpubed/streams.json").expanduser()


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stream", required=True, help="stream to read")
    parser.add_argument("--dataset", required=True, help="name of the dataset to fill")
    parser.add_argument("--until", choices=["end", "forever"], default="end")
    parser.add_argument("--shard-messages", type=int, default=1000, help="messages of a shard")
    parser.add_argument("--shard-mib", type=float, default=256, help="size of a shard")
    parser.add_argument("--flush-s", type=float, default=10, help="closes a shard after a pause")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("GPUBED_RUN_DIR", ".")))
    return parser.parse_args()


def main() -> None:
    """Runs on the first rank alone: one job at a time fills a dataset."""
    if int(os.environ.get("HOROVOD_RANK", "0")):
        return
    arguments = parse_arguments()
    if not OWN.exists():
        sys.exit(
            f"there is no {OWN}: the cluster has no streams; add `streams: {{}}` to services in "
            "cluster.yml, then: gpubed up CLUSTER"
        )
    import consume  # its package is there on clusters with streams only
    import nats

    root = Path(os.environ.get("GPUBED_SHARED", "/shared")) / "datasets"
    if Path(arguments.dataset).name != arguments.dataset or arguments.dataset == "..":
        sys.exit(f"{arguments.dataset!r} is no name of a dataset: it is one folder in {root}")
    root.mkdir(exist_ok=True)
    with (root / f".{arguments.dataset}.lock").open("w") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            sys.exit(f"another job fills {root / arguments.dataset}; wait for it, or cancel it")
        started = time.monotonic()
        try:
            dataset = Dataset(root / arguments.dataset, arguments.stream)
            before = dataset.told["images"]
            dead = asyncio.run(consume.read(arguments, json.loads(OWN.read_text()), dataset))
        except (ValueError, nats.errors.Error) as error:
            sys.exit(str(error))
    messages, seconds = dataset.told["images"] - before, time.monotonic() - started
    metrics = {
        "messages": messages,
        "dead_messages": dead,
        "shards": len(dataset.told["shards"]),
        "last_sequence": dataset.last,
        "seconds": seconds,
        "messages_per_s": messages / seconds,
    }
    draft = arguments.out / ".metrics.json"
    draft.write_text(json.dumps(metrics, indent=2) + "\n")
    draft.rename(arguments.out / "metrics.json")
    print(f"{messages} messages, {dead} dead, {seconds:.1f} s")


if __name__ == "__main__":
    main()
