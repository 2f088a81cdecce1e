"""What a campaign was measured on: facts, links and the project's commit, as far as known."""

import json

import pytest

from gpubed.campaigns import file, matrix, provenance
from gpubed.jobs import jobfile
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.verification import Check, Verification
from gpubed.testbeds.specification import load_plan
from support.samples import granted_cluster, sample_allocation, sample_plan

pytestmark = pytest.mark.process

FACTS = {"schema": "gpubed/facts/2", "host": "h", "kernel": "6", "cpus": 8, "memory_kib": 16 << 20}
PLAIN = "schema: gpubed/campaign-file/1\njob: digits\nfactors: {nodes: [1]}\n"


@pytest.fixture
def cluster(tmp_path):
    return granted_cluster(tmp_path)


@pytest.fixture
def header(cluster, tmp_path):
    """A function that returns what would stand in `campaign.json`, as JSON would have it."""

    def make():
        path = tmp_path / "mine.yml"
        path.write_text(PLAIN)
        source = file.load(str(path), cluster.project)
        points = matrix.expand(source, jobfile.load("digits"))
        granted = sample_allocation(sample_plan())
        plan = load_plan(cluster.spec)
        known = Cluster(cluster, plan, granted)
        made = provenance.made_with(known, "digits")
        return json.loads(json.dumps(provenance.header(known, source, points, "typed", made)))

    return make


def test_hardware_is_told_in_words_and_what_pretends_is_named(cluster, header):
    cluster.facts.mkdir()
    gpus = [{"device_id": "20b0", "pci": f"0000:0{place}:00.0", "name": "A100"} for place in (1, 2)]
    content = {**FACTS, "gpus": gpus, "simulated": "A100-SXM4-80GB"}
    (cluster.facts / "id-node-0.json").write_text(json.dumps(content))
    found = header()
    assert found["nodes"][0]["hardware"] == "8 CPUs, 16 GiB, 2 x A100"
    assert found["nodes"][1]["hardware"] is None
    assert found["simulated"] is True


def test_links_are_those_that_the_last_verification_measured(cluster, header):
    measured = {"id": "link.rate", "result": "pass", "value": 191.5, "unit": "Mbit/s"}
    checks = (
        Check(node="node-0>node-1", **measured),
        Check(node="node-0>node-9", **measured),  # a node that is none any more
        Check(id="link.rate", result="skip", reason="no link has a declared rate"),
        Check(id="network.mtu", node="node-0", result="pass", value=1500, unit="B"),
    )
    verified = Verification(
        cluster="lab", at="2026-01-01T00:00:00+00:00", node_ids=("id-node-0",), checks=checks
    )
    verified.save(cluster.verification)
    assert header()["links"] == [
        {"src": "node-0", "dst": "node-1", "declared_bps": 200_000_000, "measured_bps": 191.5e6}
    ]
    cluster.verification.write_text("{")
    assert header()["links"] == []
