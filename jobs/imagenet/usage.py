"""How busy processor, GPU, memory and network of a rank are while it trains."""

from __future__ import annotations

import os
import statistics
import threading
import time
from contextlib import suppress
from typing import Any

import psutil
import torch

PERIOD_S = 1.0


class Usage:
    """Looks once per second from `start` on; `read` says what it saw since then.

    Network figures are those of the interface that jobs use, which the ranks of a node share.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._process = psutil.Process()
        self._interface = os.environ.get("GPUBED_INTERFACE", "")
        self._gpu: list[float] = []
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts to look."""
        self._since, self._cpu, self._bytes = self._now()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def read(self) -> dict[str, Any]:
        """Percent of one core and of the GPU, bytes of memory, bit/s; null is not known."""
        self._ended.set()
        if self._thread:
            self._thread.join()
        now, cpu, moved = self._now()
        seconds = now - self._since
        sent, received = (
            8 * (after - before) / seconds if after is not None else None
            for before, after in zip(self._bytes, moved, strict=True)
        )
        on_gpu = self._device.type == "cuda"
        return {
            "cpu_percent": 100 * (cpu - self._cpu) / seconds,
            "memory_bytes": self._process.memory_info().rss,
            "gpu_percent": statistics.fmean(self._gpu) if self._gpu else None,
            "gpu_memory_bytes": torch.cuda.max_memory_allocated(self._device) if on_gpu else None,
            "sent_bps": sent,
            "received_bps": received,
        }

    def _look(self) -> None:
        # torch asks the GPU's driver through nvidia-ml-py, which a container may lack.
        with suppress(ImportError, RuntimeError):
            while self._device.type == "cuda" and not self._ended.wait(PERIOD_S):
                self._gpu.append(float(torch.cuda.utilization(self._device)))

    def _now(self) -> tuple[float, float, tuple[int | None, int | None]]:
        times = self._process.cpu_times()
        counted = psutil.net_io_counters(pernic=True).get(self._interface)
        moved = (counted.bytes_sent, counted.bytes_recv) if counted else (None, None)
        return time.perf_counter(), times.user + times.system, moved
