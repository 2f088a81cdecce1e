"""What a node answers, each reader takes or refuses in words: root on one node is enough to lie.

Sessions are STAND-INs that answer every command with the same text.
"""

import itertools
import json
import re
from types import SimpleNamespace

import pytest

from gpubed.backends.static import host as static_host
from gpubed.backends.virtualwall import prepare as boot_proof
from gpubed.checks import (
    accelerator,
    access,
    cuda,
    docker,
    firewall,
    gpu_proof,
    monitoring,
    rdma,
    slurm,
    software,
    storage,
    tcp_links,
    verify,
)
from gpubed.checks.context import Context
from gpubed.cluster import probe
from gpubed.configuration import health, systemd, usage
from gpubed.configuration.roles import Unit
from gpubed.core.errors import GpubedError
from gpubed.hardware import host, report
from gpubed.jobs import images, leftovers
from gpubed.nodes import disks
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.answers import Answer, Misfit
from gpubed.nodes.ssh import CommandResult
from gpubed.nodes.verification import Check
from gpubed.recipes import recipe as recipes
from support.samples import sample_allocation, sample_plan

HOSTILE = [
    "", "\n", "\n\n\n", "foo bar baz qux quux\nfoo bar", "/ ² 1 1 1\n/ ² 1 1 1\n", "²", "٣", "nan",
    "1e999", "-1", "1.2.3", "\0", "9" * 5000, "x" * 500_000, "a 1 2 3\n" * 62_500,
    json.dumps({"who": "x" * 500_000}), "\x1b]0;title\x07\x1b[2J 1 1 1 1\n", "\u202e1 1 1", "null",
    "[1e999, {}]", '{"schema": 1}', "||||\n|", "=\n==\na=b\n", "ssh-ed25519\nfoo ²\n--\n\n",
    "..% packet loss", '{"jobs": [{"read": {"bw_bytes": NaN}}]}',
    f"{rdma._WRITE_BYTES} 500 1 1e999 1\n", '"\\ud800"',
]  # fmt: skip


class Liar:
    """Answers everything with one text, on both streams and with any exit code."""

    def __init__(self, node, text, exit_code=0):
        self.node, self.text, self.exit_code = node, text, exit_code

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def run(self, *_, **__):
        return CommandResult(self.text, self.text, self.exit_code, 0.1)

    def put(self, *_):
        pass

    def answers(self, *_, **__):
        return False


SERVICES = {"slurm": {}, "docker": {}, "monitoring": {}, "jupyterlab": {}}
PLAN = sample_plan(
    nodes=[{"count": 2}],
    networks={"experiment": {"rate": "200 Mbit/s", "rdma": {}}},
    storage={"shared": {"expect": {"write": "1 Mbit/s", "latency": "1 ms"}}},
    services=SERVICES,
)
GRANTED = sample_allocation(PLAN)
NODES = tuple(node.model_copy(update={"gpus": 1}) for node in GRANTED.nodes)
GRANTED = GRANTED.model_copy(update={"nodes": NODES})


@pytest.fixture
def lied_to(tmp_path):
    """A function from a text to a context whose nodes answer with it."""

    def context(text, exit_code=0):
        sessions = {node.name: Liar(node, text, exit_code) for node in NODES}
        return Context(
            Cluster(SimpleNamespace(name="lab", state=tmp_path), PLAN, GRANTED), sessions
        )

    return context


def told(check):
    """A reader that runs a check as `verify` does."""

    def read(context, _):
        return list(verify._results(check, context))

    return read


def as_kept(found):
    """What a reader found; of checks, what `verify` keeps of them."""
    found = list(found) if isinstance(found, list | tuple) else [found]
    return [verify._short(one, "lab") if isinstance(one, Check) else one for one in found]


def on_head(read):
    return lambda context, _: read(context.head)


def opened(module, read):
    """A reader that opens its sessions by itself."""

    def opens(context, monkeypatch):
        session = lambda node, *_: context.sessions[node.name]  # noqa: E731
        monkeypatch.setattr(module, "SSH", session)
        return read(context)

    return opens


UNITS = (Unit("slurmd.service", "slurm"), Unit("/etc/exports", "nfs"))
RECIPE = recipes.load("cuda13")
READERS = {
    "clocks": told(access.clocks),
    "mesh": told(access.mesh),
    "firewall": told(firewall.closed_from_outside),
    "rdma": told(rdma.rdma),
    "the device's counter": on_head(rdma._sent),
    "perftest's table": lambda c, _: rdma.write_bps(Answer("node-0", "ib_write_bw", c.head.text)),
    "slurm": told(slurm.slurm),
    "gres": lambda c, _: slurm._gpus(c, c.head.node, "down", f"gpu:{c.head.text}"),
    "docker": told(docker.gpus),
    "ecc": lambda c, _: accelerator._ecc(c.head.node, gpu_proof.Proof(asked=1), c.head.run()),
    "counters": lambda c, _: accelerator._counters([["0", "Enabled", c.head.text]]),
    "nvcc": told(cuda.compiler),
    "nccl": lambda c, _: list(cuda.on_node(RECIPE, c.head.node, c.head.text)),
    "nccl's JSON": lambda c, _: list(cuda.on_node(RECIPE, c.head.node, "{" + c.head.text)),
    "GPU proof": lambda c, _: gpu_proof.ask(c.head.node, c.head),
    "facts": lambda c, _: c.facts,
    "software": told(software.packages),
    "shared storage": told(storage.shared),
    "fio": told(storage.throughput),
    "links of idle nodes": lambda c, _: tcp_links.in_pairs(c, c.allocation.nodes, 1e8),
    "prometheus": lambda c, _: monitoring._ask(c, "targets"),
    "df": lambda c, _: disks.full(disks.look(c.head, "/shared")),
    "systemd": lambda c, _: systemd.stopped(c.head, c.head.node, UNITS),
    "network": lambda c, _: probe._network(c.head, c.head.node, "10.0.0.2", True),
    "health": lambda c, _: health.ask(c.head, c.cluster.paths, c.head.node),
    "use": opened(usage, lambda c: usage._look(c.cluster.paths, c.head.node)),
    "leftovers": opened(leftovers, lambda c: leftovers.processes(c.cluster.paths, c.head.node)),
    "images": opened(images, lambda c: images.require(c.cluster, "x")),
    "an own host": on_head(static_host.look),
    "host keys": lambda c, _: boot_proof.proved(c.head.text, "token"),
    "GPUs of a host": on_head(host.look),
    "GPU report": lambda c, _: report._run(c.head, "gpubed-facts"),
}
# What is handed on as it came, to be compared and nothing else.
AS_IT_CAME = {"images", "counters", "an own host", "GPU report"}


@pytest.mark.parametrize("reader", READERS)
def test_no_answer_ends_in_a_traceback_or_is_shown_whole(lied_to, monkeypatch, reader):
    for text, exit_code in itertools.product(HOSTILE, (0, 1)):
        found, refused = None, ""
        try:
            found = READERS[reader](lied_to(text, exit_code), monkeypatch)
        except GpubedError as error:
            refused = str(error)
        assert len(refused) < 3000
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e]", refused)
        if reader not in AS_IT_CAME:
            assert len(repr(as_kept(found))) < 30_000


@pytest.mark.parametrize(
    ("ask", "text", "words"),
    [
        (Answer.number, "foo", "node-1 answers `date` with 'foo': no number"),
        (Answer.number, "nan", "with 'nan': no number"),
        (Answer.number, "1e999", "no number"),
        (Answer.whole, "²", "with '²': no whole number"),
        (Answer.whole, "", "with 'no printable text': no whole number"),
        (lambda answer: answer.parts(3), "a b", "not 3 words"),
        (lambda answer: answer.parts(1), "a b", "not 1 words"),
        (
            lambda answer: answer.json(dict[str, int]),
            "x" * 5_000_000,
            "x…': not of the expected form",
        ),
    ],
)
def test_what_does_not_fit_names_node_command_and_answer(ask, text, words):
    with pytest.raises(Misfit) as refused:
        ask(Answer("node-1", "date", text))
    assert words in str(refused.value)
    assert refused.value.node == "node-1"
    assert len(str(refused.value)) < 400


def test_a_check_that_cannot_read_an_answer_fails_and_names_the_node(lied_to):
    (found,) = told(access.clocks)(lied_to("foo"), None)
    assert (found.id, found.node, found.result) == ("clock.offset", "node-0", "fail")
    assert "answers `date +%s.%N` with 'foo'" in found.reason
