"""Times Horovod's allreduce over a range of sizes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import horovod.torch as hvd
import psutil
import torch

SMALLEST = 64 << 10
LARGEST = 1 << 30
ELEMENT = 4
# Seconds for all repetitions of a size: enough for a median, and the whole series stays below a
# minute. A single size gets less, as three repetitions are enough.
BUDGET_S, ALONE_S = 4.0, 1.5
MOST_REPETITIONS = 20
FEWEST_REPETITIONS = 3
# Share of a layer-2 rate that TCP payload reaches at an MTU of 1500.
GOODPUT = 0.94
# An allreduce below this share of TCP's goodput is compared with one on this machine alone.
SLOW = 0.9


@dataclass(frozen=True)
class Timing:
    """One size: the median time, and the machine's CPU use (0 to 1)."""

    size: int
    seconds: float
    cpu: float


def bus_factor(ranks: int) -> float:
    """Bytes that every rank must send per byte reduced (NCCL tests, PERFORMANCE.md)."""
    return 2 * (ranks - 1) / ranks


def sizes_up_to(limit: int) -> list[int]:
    """64 KiB, 256 KiB, 1 MiB ... up to the limit."""
    sizes = [SMALLEST]
    while sizes[-1] * 4 <= limit:
        sizes.append(sizes[-1] * 4)
    return sizes


def sizes_to(size: int) -> list[int]:
    """The sizes of `sizes_up_to`, and last the size itself in whole elements."""
    last = size - size % ELEMENT
    return [*(smaller for smaller in sizes_up_to(last) if smaller < last), last]


def largest_size(rate_bps: float, ranks: int, seconds: float) -> int:
    """The size whose allreduce takes so many seconds at this rate, at most 1 GiB."""
    return min(LARGEST, int(rate_bps / 8 * GOODPUT * seconds / bus_factor(ranks)))


def busy_seconds() -> float:
    """CPU time of all processes of this machine since boot."""
    times = psutil.cpu_times()
    return sum(times[:3]) + getattr(times, "irq", 0) + getattr(times, "softirq", 0)


def run_once(tensor: torch.Tensor, name: str) -> float:
    """Seconds of one allreduce, started on all ranks together."""
    hvd.barrier()
    start = time.perf_counter()
    hvd.allreduce_(tensor, op=hvd.Sum, name=name)
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
    return time.perf_counter() - start


def slowest(seconds: float) -> float:
    """The longest time of all ranks."""
    return float(hvd.allreduce(torch.tensor([seconds], dtype=torch.float64), op=hvd.Max)[0])


def time_size(size: int, device: torch.device, budget_s: float) -> Timing:
    """Warms up once, then takes the median over repetitions."""
    tensor = torch.zeros(size // ELEMENT, device=device)
    first = slowest(run_once(tensor, f"allreduce.{size}"))
    count = min(MOST_REPETITIONS, max(FEWEST_REPETITIONS, round(budget_s / first)))
    busy, start = busy_seconds(), time.perf_counter()
    times = [slowest(run_once(tensor, f"allreduce.{size}")) for _ in range(count)]
    wall = time.perf_counter() - start
    cpu = (busy_seconds() - busy) / wall / (psutil.cpu_count() or 1)
    return Timing(size, statistics.median(times), min(1.0, cpu))


def measure(
    sizes: list[int], device: torch.device, tell: Callable[[int, int], None]
) -> list[Timing]:
    """Times one size after the other; calls `tell` with the number of finished sizes and of all."""
    timings: list[Timing] = []
    budget_s = BUDGET_S if len(sizes) > 1 else ALONE_S
    for size in sizes:
        tell(len(timings), len(sizes))
        timings.append(time_size(size, device, budget_s))
    tell(len(timings), len(sizes))
    return timings
