"""Clusters whose nodes are reached through others: what is told, and what is not claimed."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from gpubed.access import services, tunnel
from gpubed.core.errors import GpubedError
from gpubed.core.paths import Project
from gpubed.nodes.allocation import Allocation, Cluster, Hop
from support.samples import sample_allocation, sample_plan

GATE = Hop(address="192.0.2.200", user="me", host_keys=("ssh-ed25519 GATE",))


def behind(hop: Hop) -> Allocation:
    granted = sample_allocation(sample_plan())
    nodes = tuple(node.model_copy(update={"via": (hop,)}) for node in granted.nodes)
    return granted.model_copy(update={"nodes": nodes})


def reached(folder: Path, granted: Allocation) -> Cluster:
    return Cluster(Project(folder).cluster("lab"), sample_plan(), granted)


def test_services_are_told_as_the_tunnel_will_have_them(tmp_path: Path) -> None:
    [lab] = services.urls(reached(tmp_path, behind(GATE)))
    assert lab["url"] == "https://localhost:8888/lab"


@pytest.mark.process
def test_a_tunnel_that_does_not_open_says_why(tmp_path: Path) -> None:
    refused = pytest.raises(GpubedError, match=r"does not open: (?s:.)*ssh_config")
    with refused, tunnel.to_head(reached(tmp_path, behind(GATE)), 8888):
        pass


# A STAND-IN for ssh: forwards nothing, and dies as one does whose machine was asleep.
SSH = """#!{python}
import socket, sys
port = int(sys.argv[sys.argv.index("-L") + 1].split(":")[1])
with socket.create_server(("127.0.0.1", port)) as server:
    for _ in range(2):
        server.accept()[0].close()
print("Warning 1", "Warning 2", "Timeout, server not responding.", sep="\\n", file=sys.stderr)
sys.exit(255)
"""


@pytest.mark.process
def test_a_tunnel_that_ends_later_says_why_and_what_opens_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ssh").write_text(SSH.format(python=sys.executable))
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    granted = sample_allocation(sample_plan())
    with tunnel.through_ssh(reached(tmp_path, granted), 8888) as way:
        way.require_open("gpubed open lab")
        socket.create_connection((tunnel.LOCAL, way.port)).close()
        with pytest.raises(GpubedError, match=r"has ended: .* 2; Timeout, server not") as ended:
            way.wait("gpubed open lab")
    assert ended.value.hint == "gpubed open lab"


def test_a_port_that_is_taken_here_is_not_taken_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert tunnel.free(port) == 0
    assert tunnel.free(0) > 0
