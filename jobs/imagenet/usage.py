"""Measures a rank's use of CPU, GPU, memory and network while it trains."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import torch

PERIOD_S = 1.0
SYS = Path("/sys/class")
# `port_xmit_data` and `port_rcv_data` count words (Linux, Documentation/ABI/stable/
# sysfs-class-infiniband).
WORD_BYTES = 4
# `type` of an interface that sends IP over InfiniBand (Linux, if_arp.h).
ARPHRD_INFINIBAND = "32"
Moved = tuple[int | None, int | None]


class Usage:
    """Samples once per second from `start` on, except while paused; `read` returns the result.

    Network figures are those of the interface that jobs use, which the ranks of a node share; with
    GPUs, RDMA adapters count as well, as interfaces do not count their traffic.
    """

    def __init__(self, device: torch.device, time_factor: float = 1.0) -> None:
        self._device, self._factor = device, time_factor
        self._process = psutil.Process()
        self._interface = os.environ.get("GPUBED_INTERFACE", "")
        self._gpu: list[float] = []
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._seconds = self._cpu = 0.0
        self._bytes: list[int | None] = [0, 0]

    def start(self) -> None:
        """Starts sampling."""
        self._before = self._now()
        self._ended.clear()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops sampling until the next `start`."""
        if self._thread is None:
            return
        self._ended.set()
        self._thread.join()
        self._thread = None
        (since, cpu_before, bytes_before), (now, cpu, moved) = self._before, self._now()
        self._seconds += now - since
        self._cpu += cpu - cpu_before
        self._bytes = [
            None if whole is None or before is None or after is None else whole + after - before
            for whole, before, after in zip(self._bytes, bytes_before, moved, strict=True)
        ]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Context that does not count, as in `timing.Clock`: checkpoints, validation.

        Network traffic within it would otherwise count as that of the steps.
        """
        was_looking = self._thread is not None
        self.stop()
        yield
        if was_looking:
            self.start()

    def read(self) -> dict[str, Any]:
        """Percent of one core and of the GPU, bytes of memory, bit/s; None if unknown."""
        self.stop()
        sent, received = (
            None if moved is None else 8 * moved / self._seconds * self._factor
            for moved in self._bytes
        )
        on_gpu = self._device.type == "cuda"
        return {
            "cpu_percent": 100 * self._cpu / self._seconds,
            "memory_bytes": self._process.memory_info().rss,
            "gpu_percent": statistics.fmean(self._gpu) if self._gpu else None,
            "gpu_memory_bytes": torch.cuda.max_memory_allocated(self._device) if on_gpu else None,
            "sent_bps": sent,
            "received_bps": received,
        }

    def _look(self) -> None:
        if self._device.type != "cuda":
            return
        # torch asks the GPU's driver through nvidia-ml-py, which a container may lack.
        with suppress(ImportError, RuntimeError):
            while not self._ended.wait(PERIOD_S):
                self._gpu.append(float(torch.cuda.utilization(self._device)))
            if not self._gpu:  # ended within a second; the driver reports at most the last second
                self._gpu.append(float(torch.cuda.utilization(self._device)))

    def _now(self) -> tuple[float, float, Moved]:
        times = self._process.cpu_times()
        return time.perf_counter(), times.user + times.system, self._moved()

    def _moved(self) -> Moved:
        """Bytes that the node has sent and received so far; None if unknown."""
        counted = psutil.net_io_counters(pernic=True).get(self._interface)
        by_ip = (counted.bytes_sent, counted.bytes_recv) if counted else (None, None)
        by_rdma = adapters_moved() if self._device.type == "cuda" else None
        if by_rdma is None:
            return by_ip
        # The adapter's count includes IP over InfiniBand.
        if counted is None or _type(self._interface) == ARPHRD_INFINIBAND:
            return by_rdma
        return by_rdma[0] + counted.bytes_sent, by_rdma[1] + counted.bytes_recv


def adapters_moved() -> tuple[int, int] | None:
    """Bytes that the node's RDMA adapters have sent and received; None without adapters."""
    sums = [0, 0]
    ports = sorted((SYS / "infiniband").glob("*/ports/*/counters"))
    try:
        for port in ports:
            for at, name in enumerate(("port_xmit_data", "port_rcv_data")):
                sums[at] += int((port / name).read_text()) * WORD_BYTES
    except (OSError, ValueError):
        return None
    return (sums[0], sums[1]) if ports else None


def _type(interface: str) -> str:
    try:
        return (SYS / "net" / interface / "type").read_text().strip()
    except OSError:
        return ""
