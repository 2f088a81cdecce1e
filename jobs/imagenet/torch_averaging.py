"""torch's own ways to average gradients: DDP and FSDP."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from averaging import FP32_BYTES, Averaging, Mark, Options
from timing import COMMUNICATION, COMPUTE
from torch import Tensor, distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

# DDP's own default, in MiB.
BUCKET_MB = 25
# A list of layers with less than 1 / this of a model's weights is gathered as one.
MANY_BLOCKS = 20
_LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


class TorchRanks(Averaging):
    """Ranks that meet through a file in the run's folder, without an open port.

    They use the interface that Horovod would use, with Gloo on CPUs and NCCL on GPUs.
    """

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.device = torch.device(os.environ.get("GPUBED_DEVICE", "cpu"))
        if interface := os.environ.get("HOROVOD_GLOO_IFACE"):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        # A repeated run in the same folder must not read the earlier file.
        started = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_PORT", "0")
        self._meeting = options.folder / f".ranks-{started}"
        distributed.init_process_group(
            # Gloo gathers objects for the report on the host.
            "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo",
            store=distributed.FileStore(str(self._meeting), self.size),
            rank=self.rank,
            world_size=self.size,
        )

    def broadcast_(self, tensor: Tensor) -> None:
        """See `Averaging`."""
        distributed.broadcast(tensor, 0)

    def sum_(self, tensor: Tensor) -> None:
        """See `Averaging`."""
        distributed.all_reduce(tensor)

    def gather(self, value: Any) -> list[Any]:
        """See `Averaging`."""
        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value)
        return values

    def close(self) -> None:
        """See `Averaging`."""
        distributed.barrier()
        distributed.destroy_process_group()
        self._meeting.unlink(missing_ok=True)


class DDP(TorchRanks):
    """torch's DistributedDataParallel: gradients are sent in buckets, fixed at the start."""

    def wrap(self, network: nn.Module, make_optimizer: Callable[[Any], Optimizer]) -> None:
        """See `Averaging`."""
        super().wrap(network, make_optimizer)
        self._is_wrapped = self.options.overlap and self.size > 1
        if self._is_wrapped:
            with warnings.catch_warnings():
                # Older versions of torch do not know the new name of the argument.
                warnings.filterwarnings("ignore", "`broadcast_buffers`", FutureWarning)
                self.network = self._wrapped(network)

    @property
    def fused_mb(self) -> float:
        """See `Averaging`."""
        return BUCKET_MB if self.options.fusion_mb is None else self.options.fusion_mb

    def _wrapped(self, network: nn.Module) -> DistributedDataParallel:
        wrapped = DistributedDataParallel(
            network,
            device_ids=[self.device] if self.device.type == "cuda" else None,
            # As in Horovod, each rank keeps the statistics of its own images.
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
            bucket_cap_mb=self.fused_mb,
        )
        # A lambda, as torch refuses the method's annotations, which are strings.
        wrapped.register_comm_hook(None, lambda _state, bucket: self._send(bucket))
        return wrapped

    def _send(self, bucket: distributed.GradBucket) -> torch.futures.Future[Tensor]:
        if bucket.is_last():
            self._mark(COMPUTE)
        send = default_hooks.allreduce_hook
        if self.options.compression:
            send = default_hooks.fp16_compress_hook
        return send(distributed.group.WORLD, bucket)

    def _without_averaging(self) -> Any:
        return self.network.no_sync() if self._is_wrapped else super()._without_averaging()

    def backward(self, loss: Tensor, last: bool, mark: Mark) -> None:
        """See `Averaging`."""
        if not (self._is_wrapped and last):
            super().backward(loss, last, mark)
            return
        self._mark = mark
        loss.backward()
        mark(COMMUNICATION)


class FSDP(TorchRanks):
    """torch's fully sharded training: each rank has its share of weights and optimizer state.

    The model starts on the host and is sharded part by part: no GPU has all of it at once.
    """

    waits_throughout = True

    def wrap(self, network: nn.Module, make_optimizer: Callable[[Any], Optimizer]) -> None:
        """See `Averaging`."""
        for tensor in network.state_dict().values():
            self.broadcast_(tensor)
        shard = partial(
            fully_shard,
            mesh=init_device_mesh(self.device.type, (self.size,)),
            mp_policy=MixedPrecisionPolicy(
                reduce_dtype=torch.float16 if self.options.compression else None
            ),
        )
        for part in _blocks(network, sum(map(_weights, network.children()))):
            shard(part)  # moves the part to the device, then shards it
        self.network = shard(network)
        self.optimizer = make_optimizer(network.parameters())
        self._excess = 1.0 if self.options.compression else self._measured_excess()

    def _measured_excess(self) -> float:
        """Factor by which averages over the ranks are too large: Gloo of torch 2.7 sums instead."""
        ones, average = (torch.ones(count, device=self.device) for count in (self.size, 1))
        distributed.reduce_scatter_tensor(average, ones, distributed.ReduceOp.AVG)
        return average.item()

    def backward(self, loss: Tensor, last: bool, mark: Mark) -> None:
        """See `Averaging`; `timing.without_sharding` separates the waiting later."""
        self.network.set_requires_gradient_sync(last)
        (loss / self._excess).backward()
        mark(COMPUTE)

    def sent_bytes_per_step(self, parameters: int) -> float:
        """See `Averaging`; weights are gathered for each forward and each backward pass."""
        gathered = 2 * self.options.passes * FP32_BYTES
        return self._of_others() * parameters * (gathered + self.gradient_width)

    def state(self) -> dict[str, Any]:
        """See `Averaging`."""
        return tree_map(_whole, super().state())

    def restore(self, optimizer: dict[str, Any]) -> None:
        """See `Averaging`."""
        weights = list(self.network.parameters())
        shares = {
            number: {name: _share(value, weights[number]) for name, value in kept.items()}
            for number, kept in optimizer["state"].items()
        }
        super().restore({**optimizer, "state": shares})


def _blocks(part: nn.Module, whole: int) -> Iterator[nn.Module]:
    """Layers that are gathered together, while those before them compute.

    A module that is called is one block, unless it has much of the model; otherwise its children
    are blocks.

    Args:
        part: Part of a model.
        whole: Number of weights of the model.
    """
    for child in part.children():
        count, is_list = _weights(child), isinstance(child, _LISTS)
        is_called = type(child).forward is not nn.Module.forward
        is_much = count > whole / 2 or (is_list and count > whole / MANY_BLOCKS)
        if count and (not is_called or (is_much and any(child.children()))):
            yield from _blocks(child, whole)
        elif count:
            yield child


def _weights(part: nn.Module) -> int:
    return sum(weight.numel() for weight in part.parameters())


def _whole(value: Any) -> Any:
    # On the host, as no GPU may have room for all of them.
    return value.full_tensor().cpu() if isinstance(value, DTensor) else value


def _share(value: Any, weight: nn.Parameter) -> Any:
    """This rank's share of a tensor with the shape of a weight."""
    if isinstance(value, Tensor) and isinstance(weight, DTensor) and value.shape == weight.shape:
        return distribute_tensor(value.to(weight.device), weight.device_mesh, weight.placements)
    return value
