"""Measures the links between the nodes and Horovod's allreduce over them.

Writes `metrics.json`; README.md explains every figure.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import collective
import horovod.torch as hvd
import links
import room
import torch
import transports

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Place:
    """This rank among the others, known before Horovod starts."""

    rank: int
    size: int
    local_rank: int
    local_size: int

    @classmethod
    def from_environment(cls) -> Place:
        """Reads the variables of horovodrun or mpirun."""
        names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
        prefix = "HOROVOD_" if "HOROVOD_RANK" in os.environ else "OMPI_COMM_WORLD_"
        return cls(*(int(os.environ[prefix + name]) for name in names))


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a stream per link")
    rate = float(os.environ.get("GPUBED_RATE_BPS") or 0) or None
    parser.add_argument("--rate", type=float, default=rate, help="declared, bits per second")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("GPUBED_RUN_DIR", ".")))
    parser.add_argument("--bytes", type=int, help="largest size; by default by --largest-s")
    parser.add_argument("--largest-s", type=float, default=5.0, help="what the largest size takes")
    parser.add_argument(
        "--sizes", choices=("all", "largest"), default="all", help="largest: only what is judged"
    )
    parser.add_argument(
        "--host-limit",
        choices=("always", "when-slow"),
        default="always",
        help="measure what this machine does without a link: always, or to judge a low ratio",
    )
    parser.add_argument("--transport", choices=tuple(transports.ASKED), default="auto")
    parser.add_argument("--only-allreduce", action="store_true")
    return parser.parse_args()


def progress(place: Place, what: str, done: int, of: int) -> None:
    """Prints the progress in the form that gpubed shows."""
    # Not within another measurement (`--only-allreduce`), whose steps are not shown.
    if place.rank == 0 and "--only-allreduce" not in sys.argv:
        print(f"progress: {done}/{of} {what}", flush=True)


def hosts(out: Path) -> list[str]:
    """The nodes of this run, which may have different numbers of ranks."""
    return [line.split()[0] for line in (out / "hostfile").read_text().splitlines()]


def measure_links(
    place: Place, seconds: float, declared: float | None, out: Path
) -> list[dict[str, Any]]:
    """Measures the links with one rank of each node."""
    nodes = hosts(out)
    if place.local_rank or len(nodes) < 2:
        return []
    name = os.environ.get("GPUBED_NODE") or socket.gethostname()
    address = os.environ.get("GPUBED_ADDRESS") or socket.gethostbyname(name)
    number, count = nodes.index(name), len(nodes)
    tell = partial(progress, place, "links")
    return links.measure(out / ".links", number, count, name, address, seconds, declared, tell)


def gather_links(mine: list[dict[str, Any]], declared: float | None) -> list[dict[str, Any]]:
    """The rates that all nodes received, with the declared rate."""
    everything = [link for part in hvd.allgather_object(mine) for link in part]
    rows = [
        {"src": link["src"], "dst": link["dst"], "declared_bps": declared, **link}
        for link in everything
    ]
    return sorted(rows, key=lambda link: (link["src"], link["dst"]))


def rows_of(
    timings: list[collective.Timing], ranks: int, rate: float | None
) -> list[dict[str, Any]]:
    """Bus bandwidth per size, and its share of TCP's goodput on the link."""
    rows = []
    for timing in timings:
        busbw = 8 * collective.bus_factor(ranks) * timing.size / timing.seconds
        rows.append(
            {
                "bytes": timing.size,
                "seconds": timing.seconds,
                "busbw_bps": busbw,
                "ratio": busbw / (collective.GOODPUT * rate) if rate else None,
                "cpu_percent": 100 * timing.cpu,
            }
        )
    return rows


def device_of_this_rank() -> torch.device:
    """The device that `gpubed-rank` chose; for an unusable GPU there is no fallback to CPU."""
    device = torch.device(os.environ.get("GPUBED_DEVICE", "cpu"))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def host_limit(ranks: int, size: int) -> float:
    """Bus bandwidth of as many ranks on this machine alone, over its loopback.

    CPUs that cannot move more through the loopback cannot drive more through a link either.
    """
    folder = Path(tempfile.mkdtemp(prefix="allreduce-"))
    clean = ("HOROVOD_", "OMPI_", "PMIX_", "GPUBED_")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(clean)}
    command = [
        str(Path(sys.executable).with_name("horovodrun")),
        *("--gloo", "--network-interfaces", "lo", "-np", str(ranks), "-H", f"localhost:{ranks}"),
        *(sys.executable, str(Path(__file__).resolve())),
        *("--only-allreduce", "--bytes", str(size), "--out", str(folder)),
    ]
    try:
        subprocess.run(command, env=environment, check=True, stdout=sys.stderr)
        return float(json.loads((folder / "metrics.json").read_text())["busbw_bps"])
    finally:
        shutil.rmtree(folder)


def limit_without_links(ranks: int, size: int) -> float | None:
    """The bus bandwidth of this many ranks here, or None if there is no memory for two.

    If there is memory for only some of them, their bandwidth is shared out to all: CPUs that are
    busy do no more for more ranks.
    """
    fitting = room.ranks(ranks)
    if fitting < 2:
        print("no memory for two more ranks here: their bus bandwidth is unknown", file=sys.stderr)
        return None
    busy = min(ranks, max(fitting, len(os.sched_getaffinity(0))))
    return host_limit(fitting, size) * busy / ranks


def summary(rows: list[dict[str, Any]], device: torch.device) -> dict[str, Any]:
    """The figures of the largest size, and the backend; for a single rank there are none."""
    largest = rows[-1] if rows else {}
    return {
        "allreduce": rows,
        **{name: largest.get(name) for name in ("busbw_bps", "ratio", "cpu_percent")},
        "device": os.environ.get("GPUBED_DEVICE_NAME") or str(device),
        "simulated": bool(os.environ.get("GPUBED_SIMULATED")),
        "backend": {
            "controller": os.environ.get("HOROVOD_CONTROLLER", "mpi"),
            "cpu_operations": os.environ.get("HOROVOD_CPU_OPERATIONS", "mpi"),
            "interface": os.environ.get("HOROVOD_GLOO_IFACE", ""),
            "torch": torch.__version__,
        },
    }


def write(metrics: dict[str, Any], folder: Path) -> None:
    """Writes the metrics atomically."""
    draft = folder / ".metrics.json"
    draft.write_text(json.dumps(metrics, indent=2) + "\n")
    draft.rename(folder / "metrics.json")


def measure(arguments: argparse.Namespace, place: Place, device: torch.device) -> dict[str, Any]:
    """Takes part in all measurements; returns the metrics on every rank."""
    streams = []
    if not arguments.only_allreduce:
        streams = measure_links(place, arguments.seconds, arguments.rate, arguments.out)
    torch.set_num_threads(1)
    if device.type == "cuda":
        os.environ |= transports.ASKED[arguments.transport]
        transports.listen(arguments.out / ".nccl")
    hvd.init()
    rows_links = gather_links(streams, arguments.rate)
    slowest_link = min((link["measured_bps"] for link in rows_links), default=1e9)
    sizes: list[int] = []
    if place.size > 1 and arguments.bytes:
        sizes = collective.sizes_to(arguments.bytes)
    elif place.size > 1:
        limit = collective.largest_size(slowest_link, place.size, arguments.largest_s)
        sizes = collective.sizes_up_to(limit)
    if arguments.sizes == "largest":
        sizes = sizes[-1:]
    # Ranks of a single node use no link.
    rate = arguments.rate if rows_links else None
    timings = collective.measure(sizes, device, partial(progress, place, "sizes"))
    rows = rows_of(timings, place.size, rate)
    boot_id = BOOT_ID.read_text()
    neighbours = hvd.allgather_object(boot_id).count(boot_id)
    hvd.shutdown()
    metrics = {"world_size": place.size, "links": rows_links, **summary(rows, device)}
    if not arguments.only_allreduce and place.rank == 0:
        metrics["transports"] = transports.told(arguments.out / ".nccl")
        metrics["adapters"] = transports.adapters(arguments.out / ".nccl")
        errors = [abs(link["measured_bps"] / rate - 1) for link in rows_links] if rate else []
        metrics |= {"link_error": max(errors, default=None), "host_limit_bps": None}
        slow = (metrics["ratio"] or 1.0) < collective.SLOW
        if rows and rate and device.type == "cpu" and (slow or arguments.host_limit == "always"):
            limit = limit_without_links(max(2, neighbours), rows[-1]["bytes"])
            metrics["host_limit_bps"] = limit
    return metrics


def main() -> None:
    """Runs one rank."""
    arguments = parse_arguments()
    place = Place.from_environment()
    metrics = measure(arguments, place, device_of_this_rank())
    if place.rank == 0:
        write(metrics, arguments.out)


if __name__ == "__main__":
    main()
