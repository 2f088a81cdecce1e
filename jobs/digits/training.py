"""Data-parallel training on scikit-learn's handwritten digits.

Every rank runs `train`; the job (`main.py`) and the notebook both call it.
The data come with scikit-learn, so nothing is downloaded.
"""

from __future__ import annotations

import io
import json
import math
import os
import statistics
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import horovod
import horovod.torch as hvd
import numpy as np
import psutil
import torch
from network import DigitsNet
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

TEST_SHARE = 0.2
# The rank's number of threads at its start; `limit_threads` never exceeds it.
THREADS = torch.get_num_threads()


@dataclass(frozen=True)
class Settings:
    """Settings that a researcher may change."""

    epochs: int = 20
    batch: int = 32  # images per rank and step
    learning_rate: float = 0.003  # of one rank; see `scaled`
    seed: int = 1
    checkpoint: Path | None = None
    dataset: Path | None = None  # filled by job ingest; None: scikit-learn's digits


class Load:
    """CPU and GPU use of this rank between construction and `read`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._process = psutil.Process()
        self._cpu = self._seconds()
        self._wall = time.perf_counter()
        self._gpu: list[float] = []

    def _seconds(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system

    def sample(self) -> None:
        """Samples the GPU's use, of which the GPU keeps no total."""
        # torch asks the GPU's driver through nvidia-ml-py, which a container may lack.
        with suppress(ImportError, RuntimeError):
            if self._device.type == "cuda":
                self._gpu.append(float(torch.cuda.utilization(self._device)))

    def read(self) -> tuple[float, float]:
        """Percent of one core, and percent of the GPU (-1 if unknown)."""
        cpu = 100 * (self._seconds() - self._cpu) / (time.perf_counter() - self._wall)
        return cpu, statistics.mean(self._gpu) if self._gpu else -1.0


def limit_threads() -> int:
    """Divides the cores of a machine among the ranks that run on it.

    Containers of one machine share its boot id, so this works for nodes that are containers as
    well. A container may use no more than its own part of the cores: the rank's number of threads
    at its start (OMP_NUM_THREADS).
    """
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text()
    neighbours = hvd.allgather_object(boot_id).count(boot_id)
    threads = max(1, min(THREADS, len(os.sched_getaffinity(0)) // neighbours))
    torch.set_num_threads(threads)
    return threads


def load_dataset(folder: Path) -> tuple[list[np.ndarray], list[int]]:
    """Images of 8 x 8 pixels (0 to 16) and their digits, of a dataset that job ingest filled."""
    told = json.loads((folder / "dataset.json").read_text())
    images, digits = [], []
    for shard in told["shards"]:
        with tarfile.open(folder / shard) as archive:
            for entry in archive:
                content = archive.extractfile(entry).read()
                if entry.name.endswith(".cls"):
                    digits.append(int(told["classes"][int(content)]))
                else:
                    images.append(np.asarray(Image.open(io.BytesIO(content))))
    return images, digits


def load_data(seed: int, dataset: Path | None = None) -> tuple[TensorDataset, TensorDataset]:
    """The digits as a training set and a held-out test set."""
    if dataset:
        pixels, digits = load_dataset(dataset)
    else:
        bunch = load_digits()
        pixels, digits = bunch.images, bunch.target
    images = torch.tensor(np.array(pixels), dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(np.array(digits), dtype=torch.int64)
    train, test = train_test_split(
        range(len(labels)), test_size=TEST_SHARE, random_state=seed, stratify=labels
    )
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def scaled(learning_rate: float, ranks: int) -> float:
    """The learning rate for a number of ranks: more ranks take fewer and larger steps.

    Adam divides the gradient's noise out of its steps, and the noise falls with the square root of
    the images per step. Scaled linearly as for SGD, the learning rate is too high from 10 ranks on.
    """
    return learning_rate * math.sqrt(ranks)


def make_optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """Adam, with gradients that are averaged over all ranks."""
    optimizer = torch.optim.Adam(model.parameters(), lr=scaled(settings.learning_rate, hvd.size()))
    return hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def agree_on_start(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Gives all ranks the weights and optimizer state of rank 0."""
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)


def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: DataLoader, device: torch.device
) -> tuple[float, int]:
    """One pass over this rank's share of the data; returns mean loss and number of images."""
    model.train()
    loss_sum, images_seen = 0.0, 0
    for images, labels in batches:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        loss_sum += loss.item() * len(labels)
        images_seen += len(labels)
    return loss_sum / images_seen, images_seen


@torch.no_grad()
def evaluate(model: nn.Module, data: TensorDataset, device: torch.device) -> tuple[float, float]:
    """Accuracy and loss on the test set, of which each rank evaluates a part."""
    model.eval()
    images, labels = (part[hvd.rank() :: hvd.size()].to(device) for part in data.tensors)
    scores = model(images)
    counts = torch.tensor(
        [
            float((scores.argmax(1) == labels).sum()),
            float(functional.cross_entropy(scores, labels, reduction="sum")),
            float(len(labels)),
        ],
        dtype=torch.float64,
    )
    correct, loss, total = hvd.allreduce(counts, op=hvd.Sum, name="test").tolist()
    return correct / total, loss / total


def run_epochs(
    model: nn.Module, data: TensorDataset, settings: Settings, device: torch.device, load: Load
) -> Iterator[dict[str, float]]:
    """Trains epoch by epoch; yields figures over all ranks for each."""
    optimizer = make_optimizer(model, settings)
    agree_on_start(model, optimizer)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.epochs)
    sampler = DistributedSampler(data, hvd.size(), hvd.rank(), seed=settings.seed)
    batches = DataLoader(data, batch_size=settings.batch, sampler=sampler)
    for epoch in range(settings.epochs):
        sampler.set_epoch(epoch)
        start = time.perf_counter()
        loss, images = train_epoch(model, optimizer, batches, device)
        seconds = time.perf_counter() - start
        schedule.step()
        load.sample()
        sums = hvd.allreduce(torch.tensor([loss, float(images)]), op=hvd.Sum, name="epoch").tolist()
        yield {"loss": sums[0] / hvd.size(), "images": sums[1], "seconds": seconds}


def device_of_this_rank() -> torch.device:
    """The device that `gpubed-rank` chose; for an unusable GPU there is no fallback to CPU."""
    return torch.device(os.environ.get("GPUBED_DEVICE", "cpu"))


def describe_backend(device: torch.device) -> dict[str, Any]:
    """The software that carried the gradients."""
    return {
        "controller": os.environ.get("HOROVOD_CONTROLLER", "mpi"),
        "data_plane": "nccl"
        if device.type == "cuda" and hvd.nccl_built()
        else os.environ.get("HOROVOD_CPU_OPERATIONS", "mpi"),
        "interface": os.environ.get("HOROVOD_GLOO_IFACE", ""),
        "torch": torch.__version__,
        "horovod": horovod.__version__,
    }


def save(model: nn.Module, settings: Settings) -> None:
    """Writes the weights of rank 0 atomically."""
    if settings.checkpoint is None or hvd.rank() != 0:
        return
    partial = settings.checkpoint.with_suffix(".partial")
    given = {name: str(value) for name, value in asdict(settings).items()}
    torch.save({"model": model.state_dict(), "settings": given}, partial)
    partial.rename(settings.checkpoint)


def mean_over_ranks(value: float) -> float:
    """The mean of a value over the ranks."""
    return float(hvd.allreduce(torch.tensor([value], dtype=torch.float64), name="mean")[0])


def train(
    settings: Settings, on_epoch: Callable[[int, float], None] = lambda _done, _rate: None
) -> dict[str, Any]:
    """Trains on all ranks of a started Horovod job and returns its metrics.

    Args:
        settings: The same on every rank.
        on_epoch: Called with the number of finished epochs, and the images per second of the last.

    Returns:
        The metrics of the whole job, the same on every rank.
    """
    torch.manual_seed(settings.seed)
    threads = limit_threads()
    device = device_of_this_rank()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    training_set, test_set = load_data(settings.seed, settings.dataset)
    model = DigitsNet().to(device)
    load = Load(device)
    epochs = []
    for epoch in run_epochs(model, training_set, settings, device, load):
        epochs.append(epoch)
        on_epoch(len(epochs), epoch["images"] / epoch["seconds"])
    cpu_percent, gpu_percent = (mean_over_ranks(value) for value in load.read())
    accuracy, test_loss = evaluate(model, test_set, device)
    save(model, settings)
    # The first epoch also pays for start-up.
    rates = [epoch["images"] / epoch["seconds"] for epoch in epochs[1:] or epochs]
    return {
        "test_accuracy": accuracy,
        "loss": epochs[-1]["loss"],
        "test_loss": test_loss,
        "images_per_s": statistics.median(rates),
        "epoch_seconds": [round(epoch["seconds"], 4) for epoch in epochs],
        "epoch_loss": [round(epoch["loss"], 5) for epoch in epochs],
        "cpu_percent": cpu_percent,
        "gpu_percent": gpu_percent if gpu_percent >= 0 else None,
        "world_size": hvd.size(),
        "device": os.environ.get("GPUBED_DEVICE_NAME") or str(device),
        "simulated": bool(os.environ.get("GPUBED_SIMULATED")),
        "threads_per_rank": threads,
        "backend": describe_backend(device),
    }
