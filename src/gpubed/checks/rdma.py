"""Checks RDMA step by step, from the device to a collective; TCP instead of RDMA is a failure.

Each step needs the step before, so the steps after a failure are skipped with the reason. The
devices' counters prove the transfers; programs may report RDMA and use TCP.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from gpubed.checks.context import Context, judged, skipped
from gpubed.checks.registry import Stage, at
from gpubed.core.units import format_rate
from gpubed.nodes import answers
from gpubed.nodes.allocation import Node
from gpubed.nodes.answers import Answer
from gpubed.nodes.ssh import SSH, CommandResult
from gpubed.nodes.verification import Check
from gpubed.spec.sections import Rdma

_IDS = ("rdma.device", "rdma.rping", "rdma.write_bw", "rdma.counters", "rdma.collective")
_PROGRAM = "/usr/local/sbin/gpubed-rdma"
_DEVICE = f"{_PROGRAM} device"
# Prints the ports that are set up, and those in NCCL's configuration; InfiniBand needs no setup.
_PORTS = f"""
{_PROGRAM} ports | cut -d ' ' -f 1 | paste -s -d ,
for port in $(sed -n 's/^NCCL_IB_HCA==//p' /etc/nccl.conf | tr , ' '); do
  grep -qs InfiniBand /sys/class/infiniband/${{port%:*}}/ports/${{port#*:}}/link_layer || echo $port
done | paste -s -d ,
"""
# Soft-RoCE counts packets, adapters count words of four bytes (InfiniBand, PortXmitData).
_SENT = f"""
device=$({_DEVICE})
port=/sys/class/infiniband/$device/ports/1
ibv_devinfo -d $device | awk '/active_mtu/ {{ print $2 }}'
if [ -e $port/hw_counters/sent_pkts ]; then echo packets $(cat $port/hw_counters/sent_pkts)
else echo words $(cat $port/counters/port_xmit_data); fi
"""
_RPINGS = 5
_RPING_SERVER = "timeout 30 rping -s -a {} -C {}"
# A server on a busy node takes a moment to start; until then, connections are rejected.
_TRY = "for attempt in 1 2 3 4 5; do sleep 2; {} && exit; done; exit 1"
_RPING_CLIENT = _TRY.format("timeout 10 rping -c -a {} -C {}")
_WRITE_BYTES, _WRITES = 65536, 500
# Without -R: rping tests the connection manager, and perftest fails to use it on Soft-RoCE ("Unable
# to init the socket connection", perftest 4.5).
_DEVICE_AND_GID = f'-d "$({_DEVICE})" -x "$({_PROGRAM} gid)"'
_WRITE = f"ib_write_bw {_DEVICE_AND_GID} -F -s {_WRITE_BYTES} -n {_WRITES} --report_gbits"
_WRITE_SERVER = f"timeout 60 {_WRITE}"
_WRITE_CLIENT = _TRY.format(f"timeout 50 {_WRITE} {{}}")
_REDUCE_BYTES, _REDUCTIONS = 4 << 20, 5
# Prints a message if every element is the sum over all ranks.
_REDUCE = f"""
from array import array
from mpi4py import MPI
world = MPI.COMM_WORLD
mine = array("f", [world.rank + 1.0]) * {_REDUCE_BYTES // 4}
total = array("f", [0.0]) * len(mine)
for _ in range({_REDUCTIONS}):
    world.Allreduce([mine, MPI.FLOAT], [total, MPI.FLOAT])
right = set(total) == {{world.size * (world.size + 1) / 2}}
if world.allreduce(right, MPI.LAND) and world.rank == 0:
    print("sums are right on", world.size, "ranks")
"""
_LOGINS = "'-F /etc/gpubed/ssh_config'"
# Open MPI 5 has another variable for the arguments of ssh.
_RUN = (
    f"export OMPI_MCA_plm_rsh_args={_LOGINS} PRTE_MCA_plm_ssh_args={_LOGINS}; "
    "timeout 200 mpirun --host %s -np %s /usr/bin/python3 -c %s </dev/null"
)


@dataclass(frozen=True)
class _Sent:
    """A device's counter of sent data."""

    mtu: int
    unit: str
    count: int

    def bytes_since(self, before: _Sent) -> int:
        """Return the greatest payload, in bytes, that was sent since another reading."""
        return (self.count - before.count) * (self.mtu if self.unit == "packets" else 4)


@at(Stage.FABRIC, *_IDS)
def rdma(context: Context) -> Iterator[Check]:
    """Prove RDMA from the device to a collective, if the specification asks for it."""
    wanted = context.plan.spec.networks.experiment
    if wanted is None or wanted.rdma is None:
        yield from skipped(_IDS, "the cluster asks for no RDMA")
        return
    left, why = list(_IDS), ""
    for step in (_devices, _pings, _writes, _collective):
        for check in step(context, wanted.rdma):
            if check.id in left:
                left.remove(check.id)
            if check.result == "fail":
                why = f"{check.id} failed"
            yield check
        if len(context.allocation.nodes) < 2:
            why = why or "there is only one node"
        if why:
            break
    yield from skipped(left, why)


def _devices(context: Context, _: Rdma) -> Iterator[Check]:
    """Each node has an active device on the experiment interface, and NCCL uses no others."""

    def ask(_: Node, ssh: SSH) -> tuple[str, list[str]]:
        device = ssh.run(_DEVICE, check=False).stdout.strip()
        return device, ssh.run(_PORTS, check=False).stdout.splitlines() if device else []

    for node, (device, lines) in context.on_each(ask):
        ports, nccls = (frozenset(filter(None, line.split(","))) for line in (*lines, "", "")[:2])
        why = ""
        if not device:
            why = "no device is active on the experiment network; see journalctl -u gpubed-rdma"
        elif nccls and nccls != ports:
            why = (
                f"NCCL's configuration has {_listed(nccls)}, and {_listed(ports)} is set up: "
                "gpubed configure CLUSTER --tags rdma,nccl"
            )
        yield judged("rdma.device", node.name, why, _listed(ports) or device, "one active")


def _listed(ports: Iterable[str]) -> str:
    return ", ".join(sorted(ports))


def _pings(context: Context, _: Rdma) -> Iterator[Check]:
    """Messages of rping return over connections of the connection manager."""
    for node, peer in _neighbours(context):
        address, where = peer.experiment_address, f"{node.name}>{peer.name}"
        server, client = (line.format(address, _RPINGS) for line in (_RPING_SERVER, _RPING_CLIENT))
        code, output = _between(context, node, peer, server, client)
        why = f"rping fails: {output}" if code else ""
        yield judged("rdma.rping", where, why, _RPINGS, "all return", "messages")


def _writes(context: Context, wanted: Rdma) -> Iterator[Check]:
    """RDMA writes reach a share of the declared rate, and the device's counter proves them."""
    network = context.allocation.experiment
    rate = (network.rate_bps if network else None) or 0
    for node, peer in _neighbours(context):
        before = _sent(context.sessions[node.name])
        client = _WRITE_CLIENT.format(peer.experiment_address)
        code, output = _between(context, node, peer, _WRITE_SERVER, client)
        moved = _sent(context.sessions[node.name]).bytes_since(before)
        measured = 0.0 if code else write_bps(Answer(node.name, "ib_write_bw", output))
        where, why = f"{node.name}>{peer.name}", ""
        if not measured:
            why = f"ib_write_bw failed: {output}"
        elif measured < wanted.floor * rate:
            why = "RDMA writes are slower than the link"
        limit = f"≥ {wanted.floor:g} of {format_rate(rate)}"
        yield judged("rdma.write_bw", where, why, round(measured / 1e6, 1), limit, "Mbit/s")
        least = _WRITES * _WRITE_BYTES
        why = "the device sent less than ib_write_bw reports"
        short = why if moved < least else ""
        yield judged("rdma.counters", where, short, moved, f"≥ {least}", "bytes")


def _collective(context: Context, _: Rdma) -> Iterator[Check]:
    """An MPI allreduce with the default settings of jobs uses RDMA."""
    nodes = context.allocation.nodes
    hosts = ",".join(node.name for node in nodes)
    before = {node.name: sent for node, sent in context.on_each(lambda _, ssh: _sent(ssh))}
    done = context.head.run(_RUN, hosts, len(nodes), _REDUCE, timeout=220, check=False)
    if "sums are right" not in done.stdout:
        why = f"the allreduce failed: {done.tail}"
        yield judged("rdma.collective", "", why, None, "runs", "bytes")
        return
    # In every algorithm, each rank sends its part at least once.
    least = _REDUCE_BYTES * _REDUCTIONS // 2
    for node, after in context.on_each(lambda _, ssh: _sent(ssh)):
        moved = after.bytes_since(before[node.name])
        why = "the sums are right, but did not go over RDMA: see /etc/ucx/ucx.conf"
        short = why if moved < least else ""
        yield judged("rdma.collective", node.name, short, moved, f"≥ {least}", "bytes")


def write_bps(table: Answer) -> float:
    """Read the average rate, in bit/s, from perftest's table (with --report_gbits)."""
    for line in table.text.splitlines():
        words = line.split()
        if words[:1] == [str(_WRITE_BYTES)] and len(words) >= 4:
            return table.part(words[3]).number() * 1e9
    return 0.0


def _sent(ssh: SSH) -> _Sent:
    mtu, unit, count = answers.of(ssh, "the device's counter", ssh.run(_SENT)).parts(3)
    return _Sent(mtu.whole(), unit.text, count.whole())


def _neighbours(context: Context) -> Iterator[tuple[Node, Node]]:
    nodes = context.allocation.nodes
    return zip(nodes, (*nodes[1:], nodes[0]), strict=True)


def _between(context: Context, node: Node, peer: Node, server: str, client: str) -> tuple[int, str]:
    """Run a client on a node and its server on the peer; return the client's code and output."""

    def run(name: str, line: str) -> CommandResult:
        return context.sessions[name].run(line, timeout=90, check=False)

    with ThreadPoolExecutor(2) as pool:  # which waits for both
        pool.submit(run, peer.name, server)
        result = pool.submit(run, node.name, client).result()
    return result.exit_code, result.tail if result.exit_code else result.stdout
