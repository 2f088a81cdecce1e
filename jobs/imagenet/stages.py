"""Pipeline parallelism: each rank computes some of the layers, and microbatches pass through them.

Ranks average nothing: each has the only copy of its weights. The order of the forward and backward
passes is torch's `Schedule1F1B`.
"""

from __future__ import annotations

import copy
import itertools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from averaging import Compute, LossOf, Mark, Options, Unfit
from timing import COMMUNICATION, COMPUTE
from torch import Tensor, fx, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import FlopCounterMode
from torch_averaging import TorchRanks

# A microbatch reads each weight twice and writes its gradient: 12 bytes, and processors and GPUs
# make some 10 operations in the time that they move a byte. A third of these is the forward pass's.
WEIGHT_WORK = 40


@dataclass(frozen=True)
class Cut:
    """A place between two nodes of a model's graph that one tensor alone crosses.

    Attributes:
        place: Number of nodes before it.
        value: Number of the node that makes the tensor.
        shape: The tensor's shape, for one microbatch.
        work: Operations of the forward pass before it, with `WEIGHT_WORK` for each weight.
    """

    place: int
    value: int
    shape: tuple[int, ...]
    work: int


class _Measured(fx.Interpreter):
    """Notes the result and the floating-point operations of each node."""

    def run_node(self, n: fx.Node) -> Any:
        with FlopCounterMode(display=False) as counter:
            n.meta["result"] = super().run_node(n)
        n.meta["work"] = counter.get_total_flops()
        return n.meta["result"]


def cuts(traced: fx.GraphModule, images: Tensor) -> list[Cut]:
    """The places where a model can be divided, from its input to its output.

    Args:
        traced: The model, on torch's meta device.
        images: One microbatch on it.

    Raises:
        Unfit: The model's output is not one tensor.
    """
    _Measured(traced).run(images)
    numbers = {node: number for number, node in enumerate(traced.graph.nodes)}
    *nodes, _ = numbers
    found, work = [], 0
    crossing: set[fx.Node] = set()
    for place, node in enumerate(nodes, 1):
        work += node.meta["work"]
        if node.op == "call_module":
            weights = traced.get_submodule(node.target).parameters()
            work += WEIGHT_WORK * sum(weight.numel() for weight in weights)
        crossing = {n for n in {*crossing, node} if any(numbers[u] >= place for u in n.users)}
        if len(crossing) == 1 and not _is_overwritten(traced, *crossing):
            [value] = crossing
            if isinstance(result := value.meta["result"], Tensor):
                found.append(Cut(place, numbers[value], tuple(result.shape), work))
    if found[-1].place < len(nodes):
        raise Unfit("framework=pipeline is for models with one output; take ddp or fsdp")
    return found


def _is_overwritten(traced: fx.GraphModule, value: fx.Node) -> bool:
    """Whether a later node changes a tensor in place, which a received tensor does not allow."""
    return any(
        user.kwargs.get("inplace")
        or (user.op == "call_module" and getattr(traced.get_submodule(user.target), "inplace", 0))
        or (user.target is operator.iadd and user.args[0] is value)
        for user in value.users
    )


def divide(places: list[Cut], parts: int) -> list[Cut]:
    """The cuts that divide a model into parts of about equal work, with its input and output.

    Of several divisions whose largest part has the least work, it is the one with the least to
    send. A part without work has no weights, and is not for a rank.

    Raises:
        Unfit: The model has not enough parts with work.
    """

    @cache
    def best(start: int, parts: int) -> tuple[int, int, tuple[int, ...]] | None:
        """Work of the largest part, elements to send, and ends, of what is after a cut."""
        ends = range(start + 1, len(places)) if parts > 1 else [len(places) - 1]
        found = []
        for end in ends:
            before, after = places[start], places[end]
            rest = best(end, parts - 1) if parts > 1 else (0, 0, ())
            if after.work > before.work and rest:
                largest = max(after.work - before.work, rest[0])
                found.append((largest, math.prod(after.shape) + rest[1], (end, *rest[2])))
        return min(found, default=None)

    if division := best(0, parts):
        return [places[0], *(places[end] for end in division[2])]
    most = next(count for count in range(parts - 1, 0, -1) if best(0, count))
    raise Unfit(f"this model divides into {most} parts, too few for {parts} ranks; take fewer")


def part_of(traced: fx.GraphModule, start: Cut, end: Cut) -> fx.GraphModule:
    """The layers between two cuts, with the model's own weights and their names."""
    nodes, graph = list(traced.graph.nodes), fx.Graph()
    copies = {nodes[start.value]: graph.placeholder("given")}
    for node in nodes[start.place : end.place]:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(copies[nodes[end.value]])
    return fx.GraphModule(traced, graph)


class _Layers(nn.Module):
    """A rank's layers, which return a contiguous tensor of one type."""

    compute: Compute

    def __init__(self, layers: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.layers, self._dtype = layers, dtype

    def forward(self, given: Tensor) -> Tensor:
        return self.compute(self.layers, given).to(self._dtype).contiguous()


class _Stage(PipelineStage):
    """Marks the waiting before each pass, and its computation."""

    mark: Mark

    def forward_one_chunk(self, *given: Any, **more: Any) -> Any:
        self.mark(COMMUNICATION)
        output = super().forward_one_chunk(*given, **more)
        self.mark(COMPUTE)
        return output

    def backward_one_chunk(self, *given: Any, **more: Any) -> None:
        self.mark(COMMUNICATION)
        super().backward_one_chunk(*given, **more)
        self.mark(COMPUTE)


class Pipeline(TorchRanks):
    """A model whose layers are divided among the ranks.

    Args:
        options: See `Averaging`.
        images: Shape of a microbatch.
        dtype: Type of the tensors that travel.
    """

    interleaves = True
    #: No gradient of a weight is sent.
    gradient_width = 0

    def __init__(self, options: Options, images: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__(options)
        self.replica, self.replicas = 0, 1
        self._images, self._dtype = images, dtype

    def wrap(self, network: nn.Module, make_optimizer: Callable[[Any], Optimizer]) -> None:
        """Gives each rank its layers, with the weights of rank 0; others stay on its host."""
        for tensor in network.state_dict().values():
            self.broadcast_(tensor)
        try:
            traced = fx.symbolic_trace(network)
        except (fx.proxy.TraceError, TypeError) as error:
            raise Unfit(
                f"framework=pipeline cannot divide this model ({error}); take ddp or fsdp"
            ) from error
        there = torch.empty(self._images, device="meta")
        ends = divide(cuts(copy.deepcopy(traced).to("meta"), there), self.size)
        self.network = part_of(traced, *ends[self.rank : self.rank + 2]).to(self.device)
        self.optimizer = make_optimizer(self.network.parameters())
        types = [torch.float32, *[self._dtype] * (self.size - 1), torch.float32]
        # As shapes and types are known, ranks need not exchange them.
        given, output = (
            torch.empty(ends[n].shape, dtype=types[n], device=self.device, requires_grad=n > 0)
            for n in (self.rank, self.rank + 1)
        )
        layers = _Layers(self.network, output.dtype)
        self._stage = _Stage(layers, self.rank, self.size, self.device, given, output)
        self._schedule = Schedule1F1B(self._stage, self.options.microbatches, self._timed_loss)
        # A rank sends its outputs forward and the gradients of its inputs back.
        sent = [0, *(math.prod(end.shape) for end in ends[1:-1]), 0]
        self._sent = max(map(sum, itertools.pairwise(sent))) * self._dtype.itemsize
        names = [name for name, _ in network.named_parameters()]
        self._weights = len(names)
        # An optimizer's state has numbers of weights instead of their names.
        self._own = [names.index(name) for name, _ in self.network.named_parameters()]

    def learn(
        self, images: Tensor, labels: Tensor, compute: Compute, loss_of: LossOf, mark: Mark
    ) -> Tensor | None:
        """See `Averaging`."""
        self._stage.submod.compute, self._stage.mark, self._loss_of = compute, mark, loss_of
        losses: list[Tensor] = []
        self._schedule.step(
            *([images.contiguous()] if self._stage.is_first else []),
            target=labels if self._stage.is_last else None,
            losses=losses,
        )
        mark(COMMUNICATION)
        return torch.stack(losses).mean() if losses else None

    def _timed_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        loss = self._loss_of(outputs, labels)
        self._stage.mark(COMPUTE)
        return loss

    def sent_bytes_per_step(self, parameters: int) -> float:
        """See `Averaging`; of the rank that sends most."""
        return self._sent * self.options.microbatches

    def state(self) -> dict[str, Any]:
        """See `Averaging`."""
        mine = tree_map_only(Tensor, Tensor.cpu, super().state())
        network: dict[str, Tensor] = {}
        state: dict[int, Any] = {}
        for own, part in self.gather((self._own, mine)):
            network |= part["network"]
            state |= {own[place]: kept for place, kept in part["optimizer"]["state"].items()}
        [group] = mine["optimizer"]["param_groups"]
        groups = [{**group, "params": list(range(self._weights))}]
        return {"network": network, "optimizer": {"state": state, "param_groups": groups}}

    def restore(self, optimizer: dict[str, Any]) -> None:
        """See `Averaging`."""
        [group], state = optimizer["param_groups"], optimizer["state"]
        mine = {place: state[n] for place, n in enumerate(self._own) if n in state}
        places = list(range(len(self._own)))
        super().restore({"state": mine, "param_groups": [{**group, "params": places}]})
