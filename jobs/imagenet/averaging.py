"""Three ways to average gradients over the ranks, behind one interface.

`Horovod`, `DDP` and `FSDP` are Horovod's and torch's own. Each marks the end of a rank's own
backward pass (phase `compute`), and the arrival of the averages (phase `exposed_communication`):
the time between is communication that computation could not hide. `stages.Pipeline` divides the
layers instead. Horovod's launchers start the ranks in every case.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import autotune
import torch
from timing import COMMUNICATION, COMPUTE
from torch import Tensor, nn
from torch.optim import Optimizer

MIB = 1 << 20
FUSED = 128 * MIB
FP16_BYTES, FP32_BYTES = 2, 4
# Horovod's defaults, set here so that the environment cannot change the length of its search.
AUTOTUNE = {
    "HOROVOD_AUTOTUNE": "1",
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "3",
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "10",
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "20",
    # Each of these that is not set doubles the search.
    "HOROVOD_HIERARCHICAL_ALLREDUCE": "0",
    "HOROVOD_HIERARCHICAL_ALLGATHER": "0",
    "HOROVOD_TORUS_ALLREDUCE": "0",
    "HOROVOD_CACHE_CAPACITY": "1024",
}
# What autotune searches for, unless it is set.
TUNED = ("HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME")
# With these: 3 + 21 tries of 5 times 10 steps and one, and some until all ranks know the result.
AUTOTUNE_STEPS = 1250
Mark = Callable[[str], None]
Compute = Callable[[nn.Module, Tensor], Tensor]
LossOf = Callable[[Tensor, Tensor], Tensor]


class Unfit(Exception):
    """The ranks cannot average as requested; says why."""


@dataclass(frozen=True)
class Options:
    """How gradients are averaged.

    Attributes:
        overlap: Whether to average during the backward pass; else by one call after it.
        compression: Whether gradients are sent as fp16.
        passes: Number of backward passes whose gradients are summed before they are averaged.
        fusion_mb: Size in MiB up to which gradients are sent together; None leaves the default.
        cycle_ms: Interval at which Horovod looks for gradients that are ready; None leaves its
            default.
        hierarchical: Whether Horovod sums within each node, between nodes, and within each again.
        autotune: Whether Horovod searches for the best `fusion_mb` and `cycle_ms` itself.
        microbatches: Number of parts of a batch that pass through a pipeline.
        folder: The run's folder, on storage that all ranks see.
    """

    overlap: bool = True
    compression: bool = False
    passes: int = 1
    fusion_mb: float | None = None
    cycle_ms: float | None = None
    hierarchical: bool = False
    autotune: bool = False
    microbatches: int = 1
    folder: Path = Path()


class Averaging(ABC):
    """One rank among the others.

    Attributes:
        network: The model to call; set by `wrap`.
        optimizer: Its optimizer; set by `wrap`.
        replica, replicas: Number of this rank's copy of the model, and of the copies: each has
            images of its own.
    """

    #: Whether ranks also wait for each other within the forward and the backward pass.
    waits_throughout = False
    #: Steps at the start in which settings are tried out, so that they must not be timed.
    searching_steps = 0
    #: Whether a step is made by `learn`, since forward and backward passes interleave.
    interleaves = False
    network: nn.Module
    optimizer: Optimizer

    def __init__(self, options: Options) -> None:
        self.options = options
        self.rank, self.size, self.local_rank = place()
        self.replica, self.replicas = self.rank, self.size

    def wrap(self, network: nn.Module, make_optimizer: Callable[[Any], Optimizer]) -> None:
        """Gives all ranks the weights of rank 0; from here on gradients are averaged."""
        for tensor in network.state_dict().values():
            self.broadcast_(tensor)
        self.network, self.optimizer = network, make_optimizer(network.parameters())

    @contextmanager
    def accumulating(self, last: bool) -> Iterator[None]:
        """Context of a forward and backward pass; the last of a step averages gradients."""
        with nullcontext() if last else self._without_averaging():
            yield

    def _without_averaging(self) -> Any:
        return nullcontext()

    def backward(self, loss: Tensor, last: bool, mark: Mark) -> None:
        """Computes this rank's gradients and, after the last pass of a step, averages them."""
        loss.backward()
        mark(COMPUTE)
        if last and self.size > 1:
            self._average_now()
            mark(COMMUNICATION)

    def learn(
        self, images: Tensor, labels: Tensor, compute: Compute, loss_of: LossOf, mark: Mark
    ) -> Tensor | None:
        """Makes a step's passes, where they interleave; returns its loss, if this rank knows it.

        Args:
            images, labels: The batch.
            compute: Computes layers from what they are given.
            loss_of: Loss of outputs and labels.
            mark: `Clock.mark`.
        """
        raise NotImplementedError

    def _average_now(self) -> None:
        """Averages by one call: nothing hides it, so its time is that of the network."""
        gradients = [w.grad for w in self.network.parameters() if w.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        sent = flat.half() if self.options.compression else flat
        # Divided before the sum, as fp16 could overflow.
        self.sum_(sent.div_(self.size))
        parts = sent.to(flat.dtype).split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def apply(self, scaler: torch.amp.GradScaler) -> None:
        """Takes the optimizer's step with the averaged gradients."""
        scaler.step(self.optimizer)

    def state(self) -> dict[str, Any]:
        """Complete weights and optimizer state; all ranks must call it together."""
        module = getattr(self.network, "module", self.network)
        return {"network": module.state_dict(), "optimizer": self.optimizer.state_dict()}

    def restore(self, optimizer: dict[str, Any]) -> None:
        """Gives the optimizer a state that `state` returned."""
        self.optimizer.load_state_dict(optimizer)

    @property
    def gradient_width(self) -> int:
        """Bytes of a gradient as it is sent."""
        return FP16_BYTES if self.options.compression else FP32_BYTES

    def sent_bytes_per_step(self, parameters: int) -> float:
        """Bytes that each rank must send for a step, however the ranks are connected.

        Args:
            parameters: Number of weights of the whole model.
        """
        # An average is a reduce-scatter and an allgather; in each, a rank sends (N - 1) / N of the
        # data.
        return 2 * self._of_others() * parameters * self.gradient_width

    def _of_others(self) -> float:
        return (self.size - 1) / self.size

    @abstractmethod
    def broadcast_(self, tensor: Tensor) -> None:
        """Gives all ranks the tensor of rank 0."""

    @abstractmethod
    def sum_(self, tensor: Tensor) -> None:
        """Sums a tensor over all ranks, in place."""

    @abstractmethod
    def gather(self, value: Any) -> list[Any]:
        """Returns the values of all ranks, in their order, on every rank."""

    def versions(self) -> dict[str, str]:
        """Versions of the averaging software, beyond torch's own."""
        return {}

    @property
    def fused_mb(self) -> float | None:
        """MiB of gradients that travel together at most; None if unknown."""
        return self.options.fusion_mb

    def tuned(self) -> dict[str, Any]:
        """The best settings that a search found, as metrics; all None without a search."""
        return autotune.NOTHING

    @abstractmethod
    def close(self) -> None:
        """Disconnects from the other ranks; all ranks must call it."""


def place() -> tuple[int, int, int]:
    """Rank, number of ranks and local rank, as horovodrun, Slurm or mpirun set them."""
    prefix = "HOROVOD_" if "HOROVOD_RANK" in os.environ else "OMPI_COMM_WORLD_"
    alone = {"RANK": 0, "SIZE": 1, "LOCAL_RANK": 0}
    rank, size, local = (int(os.environ.get(prefix + name, one)) for name, one in alone.items())
    return rank, size, local


class Horovod(Averaging):
    """Horovod: a thread per rank fuses gradients that are ready, and averages them."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        if options.autotune:
            # Horovod does not search for what the node's settings fix.
            for name in TUNED:
                os.environ.pop(name, None)
        os.environ |= self._environment()
        # Imported here: nodes that use DDP or FSDP need not have Horovod.
        import horovod.torch
        from horovod.torch import mpi_ops  # `horovod.torch` of 0.28.1 lacks `is_homogeneous`

        self._hvd = horovod.torch
        self._hvd.init()
        self.rank, self.size = self._hvd.rank(), self._hvd.size()
        self.local_rank = self._hvd.local_rank()
        self.replica, self.replicas = self.rank, self.size
        if options.hierarchical and not mpi_ops.is_homogeneous():
            raise Unfit("hierarchical_allreduce needs as many ranks on each node as on others")
        if options.autotune and self.size > 1:
            self.searching_steps = AUTOTUNE_STEPS

    def _environment(self) -> dict[str, str]:
        """Variables that Horovod reads at its start; others keep their defaults."""
        given = self.options
        found: dict[str, str] = {}
        if given.autotune:
            found |= AUTOTUNE | {"HOROVOD_AUTOTUNE_LOG": str(given.folder / autotune.FILE)}
        if given.fusion_mb is not None:
            found["HOROVOD_FUSION_THRESHOLD"] = str(round(given.fusion_mb * MIB))
        if given.cycle_ms is not None:
            found["HOROVOD_CYCLE_TIME"] = str(given.cycle_ms)
        if given.hierarchical:
            # HOROVOD_HIERARCHICAL_ALLREDUCE needs MPI (Horovod 0.28.1, `CreateOperationManager`);
            # this does the same with NCCL.
            found["HOROVOD_TORUS_ALLREDUCE"] = "1"
        return found

    def wrap(self, network: nn.Module, make_optimizer: Callable[[Any], Optimizer]) -> None:
        """See `Averaging`."""
        super().wrap(network, make_optimizer)
        if not self.options.overlap or self.size == 1:
            return
        fp16, none = self._hvd.Compression.fp16, self._hvd.Compression.none
        self.optimizer = self._hvd.DistributedOptimizer(
            self.optimizer,
            named_parameters=network.named_parameters(),
            compression=fp16 if self.options.compression else none,
            backward_passes_per_step=self.options.passes,
        )

    def _average_now(self) -> None:
        if self.options.overlap:
            self.optimizer.synchronize()  # type: ignore[attr-defined]  # what wrap has put there
        else:
            super()._average_now()

    def apply(self, scaler: torch.amp.GradScaler) -> None:
        """See `Averaging`."""
        # `_average_now` has waited already.
        waited = getattr(self.optimizer, "skip_synchronize", nullcontext)
        with waited():
            scaler.step(self.optimizer)

    def broadcast_(self, tensor: Tensor) -> None:
        """See `Averaging`."""
        self._hvd.broadcast_(tensor, root_rank=0)

    def sum_(self, tensor: Tensor) -> None:
        """See `Averaging`."""
        self._hvd.allreduce_(tensor, op=self._hvd.Sum, name="gradients")

    def gather(self, value: Any) -> list[Any]:
        """See `Averaging`."""
        # By default Horovod names it after its type, which may differ between the ranks.
        return self._hvd.allgather_object(value, name="gather")

    def versions(self) -> dict[str, str]:
        """See `Averaging`."""
        import horovod

        return {"horovod": horovod.__version__}

    @property
    def fused_mb(self) -> float | None:
        """See `Averaging`; Horovod 0.28.1 fuses 128 MiB where nothing else is set."""
        return int(os.environ.get("HOROVOD_FUSION_THRESHOLD") or FUSED) / MIB

    def tuned(self) -> dict[str, Any]:
        """See `Averaging`."""
        return autotune.found(self.options.folder / autotune.FILE)

    def close(self) -> None:
        """See `Averaging`."""
        self._hvd.shutdown()
