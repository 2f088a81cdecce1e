"""`gpubed rehearse` and `gpubed probe`. STAND-IN: jobs; they give what a model of a ring says.

What real ranks do is in test_job_imagenet_ranks.py and tests/e2e/test_rehearse.py.
"""

import json
import re

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.campaigns import probing
from gpubed.campaigns.rehearsal import Host
from gpubed.configuration import health
from gpubed.core import record
from gpubed.jobs import execution, jobfile
from gpubed.jobs.job_result import JobResult
from gpubed.nodes import link_rates
from gpubed.nodes.allocation import load
from gpubed.prediction import probed
from support import stand_in_job
from support.samples import granted_cluster

pytestmark = pytest.mark.process
GRADIENTS = 4 * 25_557_032
# Bytes per second that the stand-in's machine copies and sums, for all nodes together.
MACHINE = 400e6


class Lab:
    """A cluster of three nodes whose links are held to a rate, and jobs that are not run."""

    def __init__(self, root):
        self.paths = granted_cluster(root)
        self.rates, self.calls = {}, []
        self.faults = {}
        self.address = load(self.paths.allocation).head.experiment_address

    def run(self, cluster, request, on_output=None, terms=None):
        given, nodes = request.settings, len(cluster.allocation.with_ranks)
        if request.choice.nodes:
            nodes = request.choice.nodes
        if request.choice.ranks:
            nodes = request.choice.ranks
        rate = self.rates.get("node-1", 200_000_000)
        self.calls.append((request.job, nodes, rate, dict(given)))
        self.paths.runs.mkdir(exist_ok=True)
        here = self.paths.runs / f"{len(self.calls)}-{request.job}"
        here.mkdir()
        if request.job == "allreduce":
            sizes = [1 << 16, 1 << 20, 1 << 24]
            rows = [{"bytes": size, "seconds": 1e-3 + 8 * size / (0.9 * rate)} for size in sizes]
            metrics = {"allreduce": rows}
        else:
            metrics = self.trained(given, nodes, rate)
        return JobResult(
            request.job, str(here), nodes, metrics, described=jobfile.load(request.job).metrics
        )

    def trained(self, given, nodes, rate):
        factor = float(given.get("time_factor", 1))
        compute = int(given["batch_size"]) / float(given.get("emulated_rate", 10))
        least = 2 * (nodes - 1) / nodes * 8 * GRADIENTS / (0.9 * rate)
        # Real seconds: the link, or the machine where it is slower.
        link = max(least, 2 * (nodes - 1) * GRADIENTS / MACHINE) / factor
        slow = [compute * (self.faults.get("slow", 1) if r == 1 else 1) for r in range(nodes)]
        slow = [each * self.faults.get("late", 1) for each in slow]
        step = max(max(slow) + 0.05 * link, max(slow) / 3 + link) if nodes > 1 else slow[0]
        step *= self.faults.get("slower", 1)
        *others, slowest = sorted(slow)
        return {
            "images_per_s": nodes * int(given["batch_size"]) / step,
            "step_s": step,
            "compute_s": sum(slow) / nodes,
            "exposed_communication_s": step - max(slow),
            "data_s": 0.0,
            "gradient_bytes": GRADIENTS,
            "world_size": nodes,
            "emulated": given.get("emulate"),
            "device": f"emulated compute of {given['emulate']}" if "emulate" in given else "cpu",
            "emulated_compute_s": compute,
            "time_factor": factor,
            "fused_mb": self.faults.get("fused_mb", 128),
            "interface": "eth1",
            "address": self.faults.get("address", self.address),
            "straggler_ratio": slowest / others[0] if others else None,
            "slowest_rank": "rank 1 on node-1",
            "ranks": [
                {"rank": r, "host": f"node-{r}", "compute_s": s, "data_s": 0.0}
                for r, s in enumerate(slow)
            ],
        }

    def __call__(self, *words, verb="rehearse"):
        found = CliRunner().invoke(cli.build(), [verb, "lab", *words], standalone_mode=False)
        if found.exception and not isinstance(found.exception, SystemExit):
            raise found.exception
        return found

    def json(self, *words, verb="rehearse"):
        return json.loads(self(*words, "--json", verb=verb).stdout)

    @property
    def folder(self):
        (folder,) = self.paths.campaigns.glob("rehearsal-*")
        return folder


@pytest.fixture
def testbed(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    found = Lab(tmp_path)
    monkeypatch.setattr(execution, "run", found.run)
    monkeypatch.setattr(health, "usable", stand_in_job.usable)

    class Session:
        def __init__(self, node, _paths):
            self.name = node.name

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def run(self, _command, _script, bps):
            found.rates[self.name] = int(bps)

    monkeypatch.setattr(link_rates, "SSH", Session)
    return found


@pytest.mark.parametrize(
    ("step_s", "nodes", "link", "factor"),
    [
        (1.7, 10, 1e9, 1.0),  # the links were the limit, not the machine
        (15.7, 10, 1e9, 16.8),  # a tenth of that rate, of which a part is left to spare
        (15.7, 5, 1e9, 8.4),  # half as many nodes share the machine
        (15.7, 1, 1e9, 1.0),
        (15.7, 10, 10e9, 167.3),
    ],
)
def test_the_factor_is_what_the_machine_lacks(step_s, nodes, link, factor):
    host = Host(nodes=10, step_s=step_s, gradient_bytes=GRADIENTS, link_bps=1e9)
    assert host.factor(nodes, link, one_host=True) == pytest.approx(factor, rel=0.01)


def test_machines_of_their_own_do_not_share_what_they_drive():
    host = Host(nodes=10, step_s=15.7, gradient_bytes=GRADIENTS, link_bps=1e9)
    assert host.factor(2, 1e9, one_host=False) == host.factor(10, 1e9, one_host=False) > 10


def test_links_that_are_slower_than_those_meant_stand_for_them():
    host = Host(nodes=3, step_s=6.2, gradient_bytes=GRADIENTS, link_bps=200e6)
    assert host.factor(3, 1e9, one_host=True) == 5.0


def test_each_point_runs_at_the_rate_and_the_times_of_its_factor(testbed):
    told = testbed.json("--gpu", "v100", "--batch", "32,64", "--link", "1G")
    assert {point["status"] for point in told["points"]} == {"ok"}
    assert len(told["points"]) == 6
    ran = [call for call in testbed.calls if "time_factor" in call[3]]
    for _, nodes, rate, given in ran:
        factor = float(given["time_factor"])
        assert given["emulate"] == "v100"
        if nodes > 1:
            assert factor >= 5
            assert rate == pytest.approx(1e9 / factor, rel=1e-6)
            assert float(given["cycle_ms"]) == pytest.approx(factor)
        else:
            assert factor == 1
    assert {float(given["time_factor"]) for *_, given in ran} == {*told["factors"].values()}


def test_links_get_their_declared_rate_back(testbed):
    testbed("--batch", "32", "--factor", "10")
    assert 100_000_000 in {rate for *_, rate, _ in testbed.calls}
    assert set(testbed.rates.values()) == {200_000_000}
    assert not record.read(testbed.paths).reshaped


def test_predictions_are_written_before_the_first_point_and_hold_for_it(testbed):
    told = testbed.json("--batch", "32,64,96")
    written = json.loads((testbed.folder / "prediction.json").read_text())
    assert re.fullmatch(r"[0-9a-f]{64}", written["sha256"])
    points = [json.loads(p.read_text()) for p in (testbed.folder / "points").glob("*.json")]
    assert written["written"][:23] <= min(point["started"] for point in points)[:23]
    for point in told["points"]:
        predicted = written["points"][point["id"]]
        assert predicted["low"] <= point["metrics"]["images_per_s"] <= predicted["high"]
    assert any(line.startswith("Predictions differ") for line in told["findings"])


def test_a_rehearsal_goes_on_with_the_factors_that_it_began_with(testbed):
    first = testbed.json("--batch", "32")
    count = len(testbed.calls)
    again = testbed.json("--batch", "32")
    assert again["factors"] == first["factors"]
    assert len(testbed.calls) == count
    testbed.json("--batch", "32", "--new")
    assert len(testbed.calls) > count


def test_another_question_is_another_campaign(testbed):
    testbed.json("--batch", "32")
    testbed.json("--batch", "32", "--link", "10G")
    assert len([*testbed.paths.campaigns.glob("rehearsal-resnet50-v100-*")]) == 2


def test_every_output_says_that_compute_is_emulated_and_names_the_factor(testbed):
    said = testbed("--batch", "32").stdout
    assert "Compute is emulated" in said
    factors = re.search(r"scaled by 1 to ([\d.]+)\.", said)
    assert float(factors[1]) >= 5
    report = json.loads((testbed.folder / "report" / "report.json").read_text())
    assert report["emulated"] is True
    page = (testbed.folder / "report" / "report.html").read_text()
    assert "(emulated compute)</h1>" in page
    assert (
        "emulated compute" in (testbed.folder / "report" / "figures" / "throughput.svg").read_text()
    )


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ({}, "No fault found"),
        ({"address": "172.20.0.3"}, "Wrong network at 2 of 2 points on several nodes"),
        ({"fused_mb": 0}, "Fusion is off at 2 of 2 points"),
        ({"slow": 1.5}, "A slow node at 2 of 2 points on several nodes: rank 1 on node-1"),
        ({"late": 1.2}, "Processors were too busy at 2 of 2 points"),
        ({"slower": 3}, "Slower than the predicted interval at 2 of 2 points"),
    ],
)
def test_a_wrong_set_up_is_named(testbed, fault, named):
    testbed.faults = fault
    assert named in testbed("--batch", "32").stdout


def test_a_real_campaign_and_a_rehearsal_make_no_report_together(testbed, tmp_path):
    testbed("--batch", "32")
    (tmp_path / "real.yml").write_text(
        "schema: gpubed/campaign-file/1\njob: imagenet\n"
        "factors: {nodes: [1, 2], batch_size: [32]}\n"
    )
    testbed(str(tmp_path / "real.yml"), verb="bench")
    with pytest.raises(Exception, match="figures of emulated compute and others make no ratio"):
        testbed(testbed.folder.name, "--with", "lab/real", "--here", verb="report")


def test_a_report_of_a_rehearsal_is_not_repeated_by_bench(testbed):
    testbed("--batch", "32")
    report = testbed.folder / "report" / "report.json"
    with pytest.raises(Exception, match="is of a rehearsal"):
        testbed("--repeat", str(report), verb="bench")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--gpu", "v1000"], "no GPU 'v1000'; near it are"),
        (["--model", "resnot50"], "no 'resnot50'; near it are resnet50"),
        (["--nodes", "1-4"], "4 nodes are more than the 3 that ranks could start on"),
        (["--nodes", "3-1"], "has no numbers of 1 or more"),
        (["--batch", "many"], "has no numbers of 1 or more"),
        (["--link", "fast"], "--link 'fast'"),
        (["--framework", "fsdp"], "framework is 'fsdp'"),
        (["--set", "fusion=1"], "no argument 'fusion'"),
        (["--", "python", "train.py"], "cannot put emulated compute into a script"),
    ],
)
def test_what_cannot_be_rehearsed_is_refused_with_the_reason(testbed, words, why):
    with pytest.raises(Exception, match=re.escape(why)):
        testbed(*words)
    assert not testbed.calls


def test_an_allreduce_of_known_latency_and_rate_is_found_again():
    def rows(ranks, bps, step_s):
        for size in (1 << 16, 1 << 18, 1 << 22, 1 << 25):
            seconds = 2 * (ranks - 1) * step_s + 2 * (ranks - 1) / ranks * 8 * size / bps
            yield {"bytes": size, "seconds": seconds}

    found = probing.way([*rows(2, 9e8, 4e-4)])
    assert found.bus_bps == pytest.approx(9e8)
    assert found.step_s == pytest.approx(4e-4)


def test_a_probe_is_kept_and_used_for_predictions_of_this_cluster_alone(testbed):
    told = testbed.json(verb="probe")
    assert told["ways"]["tcp"]["bus_bps"] == pytest.approx(180e6, rel=0.01)
    assert told["alone"]["images_per_s"] > 0
    uuid = "6f0c0000-0000-4000-8000-000000000000"
    found = probed.read(testbed.paths, uuid)
    assert found.calibration("tcp", 100e6).effective_bps == pytest.approx(90e6, rel=0.01)
    assert found.calibration("rdma", 100e6) is None
    assert probed.read(testbed.paths, "another") is None
    said = testbed(verb="probe").stdout
    assert "90% of the declared rate" in said


def test_a_rehearsal_probes_links_that_were_not_probed(testbed):
    testbed("--batch", "32")
    testbed("--batch", "64")
    assert [call[0] for call in testbed.calls].count("allreduce") == 1
