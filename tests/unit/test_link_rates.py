"""Links at another rate for a while: nodes are a STAND-IN; their script runs in a folder."""

import subprocess

import pytest

from gpubed.core import record
from gpubed.core.errors import GpubedError
from gpubed.nodes import link_rates
from support.samples import granted_cluster, sample_allocation, sample_plan
from support.sessions import Session

LINK = "SUBNET=10.0.0.0/20\nRATE_BPS=200000000\nMTU=1500\nDELAY_US=0\nLOSS_PERCENT=0.0000\n"


@pytest.fixture
def cluster(tmp_path):
    return granted_cluster(tmp_path)


@pytest.fixture
def granted():
    return sample_allocation(sample_plan())


@pytest.fixture
def told(monkeypatch):
    """What nodes were told: (node, rate); `mute` names those that do not answer."""

    class Told(list):
        mute = ()

    found = Told()

    class Node(Session):
        def __init__(self, node, _):
            self.name = node.name

        def run(self, _words, _script, rate):
            if self.name in found.mute:
                raise GpubedError(f"{self.name} does not answer")
            found.append((self.name, int(rate)))

    monkeypatch.setattr(link_rates, "SSH", Node)
    return found


@pytest.mark.parametrize(
    ("text", "bps", "written"),
    [("100M", 100_000_000, "100M"), ("2.5 Gbit/s", 2_500_000_000, "2.5G"), (1000000, 10**6, "1M")],
)
def test_a_rate_is_read_and_written_for_a_name(text, bps, written):
    assert link_rates.parse(text) == bps
    assert link_rates.compact(bps) == written


@pytest.mark.process
def test_the_nodes_script_changes_the_rate_alone_and_shapes_anew(tmp_path):
    link, done = tmp_path / "link", tmp_path / "done"
    link.write_text(LINK)
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(f'#!/bin/sh\necho "$@" >> {done}\n')
    systemctl.chmod(0o755)
    script = link_rates._SHAPE.replace("/etc/gpubed/link", str(link))
    subprocess.run(
        ["sh", "-c", script, "sh", "50000000"],
        check=True,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
    )
    assert link.read_text() == LINK.replace("200000000", "50000000")
    assert done.read_text().endswith("\nrestart gpubed-link.service\n")


def test_a_link_is_changed_once_and_put_back(cluster, granted, told):
    links = link_rates.Links(cluster, granted)
    links.set_rate(granted.nodes[:1], 50_000_000)
    links.set_rate(granted.nodes[:1], 50_000_000)
    assert told == [("node-0", 50_000_000)]
    assert record.read(cluster).reshaped
    assert links.restore() == []
    assert told[1:] == [("node-0", 200_000_000)]
    assert not record.read(cluster).reshaped


def test_what_a_killed_run_changed_is_put_back_by_whoever_comes_next(cluster, granted, told):
    link_rates.Links(cluster, granted).set_rate(granted.nodes, 50_000_000)
    del told[:]
    # Another run knows nothing of the links but that some may be changed.
    link_rates.Links(cluster, granted).set_rate(granted.nodes[:2], None)
    assert sorted(told) == [("node-0", 200_000_000), ("node-1", 200_000_000)]
    assert list(link_rates.restore(cluster, granted)) == []
    assert ("node-2", 200_000_000) in told
    assert not record.read(cluster).reshaped
    del told[:]
    assert list(link_rates.restore(cluster, granted)) == []
    assert told == []


def test_a_link_that_cannot_be_put_back_is_not_forgotten(cluster, granted, told):
    links = link_rates.Links(cluster, granted)
    links.set_rate(granted.nodes, 50_000_000)
    told.mute = ("node-1",)
    assert links.restore() == ["node-1: node-1 does not answer"]
    assert record.read(cluster).reshaped
    told.mute = ()
    assert list(link_rates.restore(cluster, granted)) == []
    assert not record.read(cluster).reshaped
