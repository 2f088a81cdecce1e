"""The page docs/concepts/horovod-settings.md: what Horovod is told, from which facts, and why.

Values and constants are those of `gpubed.hardware.horovod`; the names are those that role
horovod writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpubed.hardware import horovod
from gpubed.hardware.horovod import Place

_GBIT = 10**9
_DEFAULT, _LARGEST = horovod.DEFAULT_FUSION_MB, horovod.LARGEST_FUSION_MB
_TCP, _RDMA = (f"{seconds * 1e6:g}" for seconds in (horovod.HOP_S, horovod.RDMA_HOP_S))
_SHARE = f"{horovod.STARTUP_SHARE:.0%}".replace("%", " %")


@dataclass(frozen=True)
class Row:
    """A setting as the page has it.

    Attributes:
        name: The variable of `/etc/gpubed/horovod.env`, or the file.
        input: Input of role horovod that overrides it.
        value: What it is.
        fact: What it follows from.
        reason: Why.
        source: Who says so; where gpubed's own measurement does, that is said.
    """

    name: str
    input: str
    value: str
    fact: str
    reason: str
    source: str


ROWS = (
    Row(
        "HOROVOD_GLOO_IFACE",
        "horovod_interface",
        "the interface that has the node's experiment address",
        "the node's addresses",
        "else tensors travel over whatever the host's name leads to",
        "Horovod 0.28.1, `gloo_context.cc`; role horovod's patch",
    ),
    Row(
        "OMPI_MCA_plm_rsh_args",
        "",
        "`-F /etc/gpubed/ssh_config`",
        "role ssh_mesh",
        "else the account's own `~/.ssh/config` decides how nodes are reached",
        "Open MPI 4, `ompi_info --param plm rsh`",
    ),
    Row(
        "PRTE_MCA_plm_ssh_args",
        "",
        "the same for Open MPI 5",
        "role ssh_mesh",
        "else the account's own `~/.ssh/config` decides how nodes are reached",
        "PRRTE, `plm/ssh`",
    ),
    Row(
        "OMPI_MCA_btl_tcp_if_include",
        "",
        "the experiment network's subnet, or the node's own address",
        "the network",
        "Open MPI would use every interface that both nodes have; so for `oob`, below",
        "Open MPI, parameters of `btl/tcp`",
    ),
    Row(
        "OMPI_MCA_oob_tcp_if_include",
        "",
        "the experiment network's subnet, or the node's own address",
        "the network",
        "the same for what its daemons say to each other",
        "Open MPI, parameters of `oob/tcp`",
    ),
    Row(
        "CUDA_DEVICE_ORDER",
        "",
        "`PCI_BUS_ID`",
        "",
        "ranks and `nvidia-smi` number GPUs alike; bindings count on it",
        "CUDA's programming guide, environment variables",
    ),
    Row(
        "OMP_NUM_THREADS",
        "horovod_threads",
        "cores that the node may use / its ranks",
        "cores, ranks",
        "without it each rank takes all cores of its node",
        "torch, `get_num_threads`",
    ),
    Row(
        "/etc/gpubed/ranks",
        "horovod_bind",
        "the CPUs beside the rank's GPU, shared among the GPUs of one socket, and its HCA's name",
        "`nvidia-smi topo -m`, NUMA nodes",
        "no memory of the far socket between a rank and its GPU; not where there is no GPU",
        "NVIDIA, `nvidia-smi topo`",
    ),
    Row(
        "HOROVOD_FUSION_THRESHOLD",
        "horovod_fusion_mb",
        f"{_DEFAULT} MiB, which is Horovod's own; where N t rate / (8 e) is more, that, up to "
        f"{_LARGEST} MiB",
        "declared rate and latency of the network, RDMA",
        "the start of a message is a small share of its time",
        "horovod#2468; Shi et al., MG-WFBP, arXiv:1811.11141",
    ),
    Row(
        "HOROVOD_CYCLE_TIME",
        "horovod_cycle_ms",
        "Horovod's own: 1 ms",
        "none",
        "a longer one brought nothing where ranks share cores, a shorter one nobody measured here; "
        "see below",
        "horovod#2468; measured",
    ),
    Row(
        "HOROVOD_WAIT_US",
        "horovod_wait_us",
        f"{horovod.WAIT_US} µs; 0 where a node has GPUs and at least "
        f"{horovod.THREADS_OF_A_RANK} cores of its own for each rank",
        "cores per rank, GPUs, whether nodes are containers of one machine",
        "a rank that waits takes no core from those who work; see below",
        "role horovod's patch; measured",
    ),
)
"""Every setting that a node has, in the order of the page."""

_PLACES = {
    "container of the local lab, 200 Mbit/s": Place(2, 1, shares_cpus=True, rate_bps=_GBIT // 5),
    "16 cores, 1 Gbit/s": Place(16, 1, rate_bps=_GBIT),
    "16 cores, 1 Gbit/s, 10 ms": Place(16, 1, rate_bps=_GBIT, latency_s=0.01),
    "40 cores, 2 GPUs, 10 Gbit/s": Place(40, 2, gpus=2, rate_bps=10 * _GBIT),
    "8 cores, 4 GPUs, 25 Gbit/s": Place(8, 4, gpus=4, rate_bps=25 * _GBIT),
    "96 cores, 8 GPUs, 100 Gbit/s over TCP": Place(96, 8, gpus=8, rate_bps=100 * _GBIT),
    "96 cores, 8 GPUs, 100 Gbit/s with RDMA": Place(96, 8, gpus=8, rate_bps=100 * _GBIT, rdma=True),
}

HEAD = """# Horovod's settings

What ranks are told on each node, and from what it follows. Only what has a reason differs from
Horovod's own defaults; `/etc/gpubed/horovod.env` has the outcome. An input of role
[horovod](../../roles/horovod/README.md#inputs) overrides each, in
`inventories/<cluster>/group_vars/`, such as `horovod_fusion_mb: 64`.
"""

FUSION = f"""## The buffer, and the link

Horovod puts gradients that are ready together into a buffer, and averages it by one call.
An allreduce of M bytes over N nodes takes a + b M, with a = 2 (N-1) t for a start t of each hop
and b = 2 (N-1) / N x 8 / rate: MG-WFBP's model, of a ring.
The starts are at most the share e of b M where M is at least **N t rate / (8 e)**.

- t: {_TCP} µs over TCP, {_RDMA} µs with RDMA, and the network's declared latency on top.
  The constants a in MG-WFBP's source, for 8 and 16 nodes, are 0.52 and 0.91 ms over 10 Gbit/s
  Ethernet and 0.098 and 0.236 ms over 56 Gbit/s InfiniBand, which is 30 to 37 µs and 7 to 8 µs
  a hop. They tell the order of magnitude.
- N: {horovod.NODES}, however many there are: ranks must agree, also while nodes come and go.
  Where all gradients are known from the step before, each rank divides them into buffers by
  itself (`Controller::ComputeResponseList`). Two ranks with 0 and 128 MiB ended with a
  segmentation fault, tried with Gloo; so a rank takes it from its launcher, not from its node.
- e: {_SHARE}, which is gpubed's choice. A larger buffer than needed costs memory only.
- At most {_LARGEST} MiB: each rank holds it to its end, on the GPU if it has one. The largest of
  the job's usual models, VGG-16, has gradients of 528 MiB.

Nothing is gained by a smaller one on a slow link: what is ready is sent at once, however little
it is, and what becomes ready meanwhile is the next call's.
"""

CYCLE = """## The cycle

Each rank looks for gradients that are ready once a cycle, and all ranks then agree on them. On a
slow link a call takes longer than the cycle, so the next begins at once, with all that became
ready: it has no say there. Horovod went from 5 to 1 ms since pauses between calls were too long
(horovod#2468).

Measured with Horovod 0.28.1 and Gloo, three ranks on two cores that other work used too,
600 Mbit/s for all of them, a small convolutional network: 2.3 to 2.8 steps/s with 1 ms and 2.4
to 2.8 with 5 ms, so no difference; ranks with nothing to do took 7 to 12 % of a core with 1 ms and
2 to 4 % with 5 ms, and a call for 64 bytes 4 to 9 ms and 6 to 11 ms.

Whoever has steps of a few ms may try less: `gpubed run CLUSTER imagenet --set cycle_ms=0.5`.
"""

WAIT = f"""## Waiting

The release looks again and again whether a collective is done, and takes a whole core for it. A
patch of role horovod lets it sleep `HOROVOD_WAIT_US` between two looks; without that variable it
does as the release.

- On: three ranks on two cores went from 90 % to 101 % of the goodput of a 200 Mbit/s link, at 7 %
  instead of 99 % of the processors, and trained twice as many images per second. In the
  measurement above ranks took 22 to 29 % of a core instead of 31 to 49 %.
- Off where a node has GPUs that compute and {horovod.THREADS_OF_A_RANK} cores for each rank, one
  for each thread of it that is busy: the one that waits, Horovod's that sums, and the one that
  moves bytes. Nothing is to be gained there, and what it costs beside a GPU was not measured:
  one rank alone on a CPU needed 1.07 to 1.09 ms for 64 bytes with and without, most of it the
  cycle.

Nodes that pretend to have GPUs compute on their cores, and containers of one machine share them:
there it is on.
"""

LEFT = """## What is left to Horovod

- `HOROVOD_CACHE_CAPACITY`: Horovod's 1024 tensors do for the usual models (ResNet-152 has 467).
- `HOROVOD_HIERARCHICAL_ALLREDUCE`: off. Horovod has it with MPI alone (`CreateOperationManager`),
  which gpubed's launchers do not use. With NCCL, `HOROVOD_TORUS_ALLREDUCE` does the same; NCCL has
  ways of its own inside a node, so it is off, too. The job has an argument to try it.
- `HOROVOD_THREAD_AFFINITY`: unset; a rank's threads stay on its CPUs, and move freely there.

## Autotune

`gpubed run CLUSTER imagenet --set autotune=true --set warmup_steps=1250 --set steps=1350` lets
Horovod search, and the run keeps what it found (`tuned_fusion_mb`, `tuned_cycle_ms`,
`tuned_rate_bps`; `gpubed runs CLUSTER show last`). It searches 0 to 64 MiB and from 1 ms up, so
it finds no larger buffer than that and no shorter cycle, and never tries Horovod's own 128 MiB.
The best of 21 noisy rates is partly luck: compare it with the default by a
[campaign](../how-to/benchmark.md) before it stays. What a rank's environment sets,
Horovod leaves alone: with `--autotune`, `gpubed-horovodrun` and the job take the buffer and the
cycle out of it.
"""


def page() -> str:
    """Return the page."""
    table = "\n".join(_table())
    parts = (HEAD, table, _examples(), FUSION, CYCLE, WAIT, LEFT)
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _table() -> Iterator[str]:
    yield "| setting | overridden by | value | from what | reason | source |"
    yield "| --- " * 6 + "|"
    for row in ROWS:
        given = f"`{row.input}`" if row.input else ""
        yield f"| `{row.name}` | {given} | {row.value} | {row.fact} | {row.reason} | {row.source} |"


def _examples() -> str:
    lines = ["| node and network | threads | buffer | waits |", "| --- | --- | --- | --- |"]
    for name, place in _PLACES.items():
        found = horovod.derive(place)
        buffer = f"{found.fusion_mb or _DEFAULT} MiB"
        waits = f"sleeps {found.wait_us} µs" if found.wait_us else "yields"
        lines.append(f"| {name} | {found.threads} | {buffer} | {waits} |")
    return "For example:\n\n" + "\n".join(lines) + "\n"
