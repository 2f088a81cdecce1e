"""Checks the recipe's CUDA compiler and NCCL's library, network interface and locked memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pydantic import BaseModel

from gpubed.checks.context import Context, judged, skipped
from gpubed.checks.registry import Stage, at
from gpubed.nodes.allocation import Node
from gpubed.nodes.answers import Answer
from gpubed.nodes.ssh import SSH
from gpubed.nodes.verification import Check
from gpubed.recipes import recipe as recipes
from gpubed.recipes.recipe import Recipe

_NVCC = "bash -lc 'nvcc --version'"
AS_RANK = "HOROVOD_RANK=1 NCCL_SOCKET_IFNAME=lo gpubed-rank"
"""Prefix that starts a rank as Horovod does, which hands it the head's interface: here a wrong one.

`gpubed-rank` must replace it by the node's own.
"""

# NCCL chooses its interface when it creates an id, which needs no GPU.
_START_NCCL = f"""NCCL_DEBUG=INFO {AS_RANK} %s/env/current/bin/python -I -c '
import ctypes, json, pathlib, resource, sysconfig
folder = pathlib.Path(sysconfig.get_path("purelib"), "nvidia/nccl/lib")
library = ctypes.CDLL(str(folder / "libnccl.so.2"))
version, id_ = ctypes.c_int(), ctypes.create_string_buffer(128)
library.ncclGetVersion(ctypes.byref(version))
library.ncclGetUniqueId(id_)
limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
adapters = sorted(path.name for path in pathlib.Path("/sys/class/infiniband").glob("*"))
print(json.dumps({{"version": version.value, "memlock": limit, "adapters": adapters}}))
' 2>&1"""
_CHOSEN = re.compile(r"Bootstrap: Using \[?\d*\]?(\S+?):([\d.]+)<")
_NCCL = ("nccl.version", "nccl.interface", "nccl.memlock")
_UNLIMITED = -1


class _Library(BaseModel):
    version: int
    memlock: int
    adapters: list[str]


@at(Stage.SOFTWARE, "cuda.compiler")
def compiler(context: Context) -> Iterator[Check]:
    """Compare the CUDA compiler of a login shell with the recipe's."""
    id_, recipe = "cuda.compiler", recipes.load(context.plan.spec.recipe)
    if recipe.compiler != "lock":
        yield Check(id=id_, result="skip", reason=f"recipe {recipe.name} brings no CUDA compiler")
        return
    for node, answer in context.on_each(lambda _, ssh: ssh.run(_NVCC, check=False)):
        release = re.search(r"release ([\d.]+)", answer.stdout)
        right = release is not None and release[1] == recipe.cuda
        why = "" if right else f"a login shell finds another nvcc, or none: {answer.tail}"
        yield judged(id_, node.name, why, release and release[1], f"CUDA {recipe.cuda}")


@at(Stage.SOFTWARE, *_NCCL)
def nccl(context: Context) -> Iterator[Check]:
    """Start NCCL as in a rank on each node, and check its library, interface and limits."""
    recipe = recipes.load(context.plan.spec.recipe)
    if recipe.horovod.gpu_operations != "nccl":
        yield from skipped(_NCCL, f"recipe {recipe.name} has no NCCL")
        return
    root = context.plan.spec.storage.shared.path

    def start(_: Node, ssh: SSH) -> str:
        return ssh.run(_START_NCCL, root, check=False).stdout

    for node, output in context.on_each(start):
        yield from on_node(recipe, node, output)


def on_node(recipe: Recipe, node: Node, output: str) -> Iterator[Check]:
    """Judge NCCL's output on a node."""
    # NCCL's threads may print more lines around the answer.
    answer = next((line for line in output.splitlines() if line.startswith("{")), None)
    if answer is None:
        why = f"NCCL does not load: {output.strip()[-200:]}"
        yield Check(id="nccl.version", node=node.name, result="fail", reason=why)
        return
    found = Answer(node.name, "NCCL's description", answer).json(_Library)
    yield _version(recipe, node, found.version)
    yield _interface(node, output)
    yield _memlock(node, found)


def _version(recipe: Recipe, node: Node, code: int) -> Check:
    """Compare NCCL's version with the recipe's; `code` is 23007 for 2.30.7."""
    loaded = f"{code // 10000}.{code // 100 % 100}.{code % 100}"
    locked = {e.version for e in recipe.locked() if e.name.startswith("nvidia-nccl-")}
    why = "" if locked == {loaded} else "the loaded library is not the recipe's"
    return judged("nccl.version", node.name, why, loaded, ", ".join(sorted(locked)))


def _interface(node: Node, output: str) -> Check:
    chosen = _CHOSEN.search(output)
    wanted = str(node.experiment_address or node.control_address)
    why = ""
    if chosen is None or chosen[2] != wanted:
        why = "NCCL uses another network" if chosen else "NCCL finds no interface"
        why += (
            f": gpubed configure CLUSTER --tags nccl,horovod, or see /etc/nccl.conf on {node.name}"
        )
    value = f"{chosen[1]} {chosen[2]}" if chosen else None
    return judged("nccl.interface", node.name, why, value, wanted)


def _memlock(node: Node, found: _Library) -> Check:
    id_, limit = "nccl.memlock", "unlimited"
    if found.memlock == _UNLIMITED:
        return judged(id_, node.name, "", limit, limit)
    if found.adapters:
        why = "RDMA needs locked memory without a limit, which role base sets"
        return judged(id_, node.name, why, found.memlock, limit, "bytes")
    reason = f"no RDMA adapter that would need more than {found.memlock} bytes of locked memory"
    return Check(id=id_, node=node.name, result="skip", reason=reason)
