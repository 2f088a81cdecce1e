"""Results of `gpubed-gpus`, which computes on the GPUs of a node."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from gpubed.core import reading
from gpubed.core.reading import Unreadable
from gpubed.nodes.allocation import Node
from gpubed.nodes.ssh import SSH, CommandTimedOut

PROGRAM = "gpubed-gpus"
_TIMEOUT_S = 420.0  # sixteen GPUs have 120 pairs


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Figure(_Model):
    """A measured value, or the reason why it is missing."""

    value: float | None
    error: str


class GPU(_Model):
    """One GPU, as the jobs' framework sees it."""

    index: int
    name: reading.Name
    capability: reading.Name
    compute: Figure  # rate in TFLOP/s (FP32) of correct matrix products
    memory: Figure  # GiB whose test patterns were read back unchanged


class Collective(_Model):
    """A sum over GPUs of one node with NCCL; bus bandwidth in byte/s."""

    gpus: tuple[int, ...]
    rate: Figure


class Proof(_Model):
    """Results of a node's GPUs."""

    asked: int  # number of GPUs to test
    simulated: reading.Name | None = None  # the simulated GPU model; the CPU computed then
    error: str = ""  # why results are missing
    gpus: tuple[GPU, ...] = ()
    collectives: tuple[Collective, ...] = ()

    @property
    def computing(self) -> tuple[GPU, ...]:
        """The GPUs with correct results."""
        return tuple(gpu for gpu in self.gpus if not gpu.compute.error)


def ask(node: Node, ssh: SSH) -> Proof:
    """Test the GPUs of a node by `gpubed-gpus`."""
    if not node.gpus:
        return Proof(asked=0)
    try:
        answer = ssh.run(PROGRAM, check=False, timeout=_TIMEOUT_S)
        return reading.reply(answer.stdout, f"the answer of {PROGRAM}").json(Proof)
    except CommandTimedOut:
        error = f"{PROGRAM} did not end within {_TIMEOUT_S:.0f} s"
    except Unreadable:
        error = f"{PROGRAM} does not answer: {answer.tail}"
    return Proof(asked=node.gpus, error=error)
