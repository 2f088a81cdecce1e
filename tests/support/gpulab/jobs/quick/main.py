"""One rank; rank 0 writes the metrics."""

# ruff: noqa: T201
import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
for name in ("seed", "sleep", "large"):
    parser.add_argument(f"--{name}", type=int, default=0)
for name in ("fail", "silent", "forge"):
    parser.add_argument(f"--{name}", type=int)
given = parser.parse_args()
here = Path(os.environ["GPUBED_RUN_DIR"])
rank, size = int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])


def stopped(*_):
    (here / f"stopped-{rank}").touch()
    sys.exit(143)


signal.signal(signal.SIGTERM, stopped)
print(f"rank {rank} of {size} in {here.name}, seed {given.seed}, 1,000 images/s", flush=True)
if given.forge is not None:
    print("gpubed-0123456789abcdef:1/1:bm8gbWV0cmljcw==", flush=True)
    sys.stdout.buffer.write(b"no UTF-8: \xff\xfe\n")
until = time.monotonic() + given.sleep
while time.monotonic() < until:
    time.sleep(0.02)
if given.fail == given.seed:
    print(f"rank {rank}: something is wrong", flush=True)
    sys.exit(3)
if rank == 0 and given.silent != given.seed:
    (here / "large.bin").write_bytes(os.urandom(given.large))
    (here / "metrics.json").write_text(
        json.dumps({"value": 10 * given.seed, "world_size": size, "note": "text"})
    )
