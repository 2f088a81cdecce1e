"""gpubed bench: goes through a matrix and goes on after whatever ended it. Jobs are a STAND-IN."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.campaigns import file, linkrates, matrix
from gpubed.campaigns.drive import Series
from gpubed.campaigns.records import Folder
from gpubed.core import runlock
from gpubed.core.errors import GpubedError, Locked, UsageError
from gpubed.jobs import jobfile
from gpubed.nodes import rates
from gpubed.report import read
from gpubed.report.analysis import analyse
from gpubed.spec import backend_config
from support import stand_in_job
from support.samples import granted_cluster
from support.specs import BACKENDS

ROOT = Path(__file__).parents[2]
PLAIN = """schema: gpubed/campaign-file/1
job: digits
factors: {nodes: [1, 2], batch: [16, 32]}
settings: {epochs: 2}
repeat: 2
"""


class Bench:
    """A cluster, a campaign file, and what the verb says of them."""

    def __init__(self, root):
        self.root, self.paths = root, granted_cluster(root)
        self.file = root / "mine.yml"
        self.file.write_text(PLAIN)
        self.folder = self.paths.campaigns / "mine"

    def __call__(self, *words):
        return CliRunner().invoke(
            cli.build("bench"),
            ["bench", "lab", str(self.file), *words],
            standalone_mode=False,
            catch_exceptions=False,
        )

    def points(self):
        files = sorted((self.folder / "points").glob("*.json"))
        return [json.loads(path.read_text()) for path in files]

    def behave(self, **behaviour):
        (self.root / "behaviour.json").write_text(json.dumps(behaviour))

    @property
    def calls(self):
        return stand_in_job.calls(self.root)

    def process(self):
        return subprocess.Popen(
            [sys.executable, "-m", "support.stand_in_job", "bench", "lab", str(self.file)],
            env={
                **os.environ,
                "GPUBED_ROOT": str(self.root),
                "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    stand_in_job.install(monkeypatch.setattr)
    return Bench(tmp_path)


def test_every_point_is_run_as_often_as_the_file_says(bench):
    done = bench()
    assert done.return_value == 0
    assert len(bench.calls) == 8
    assert len(bench.points()) == 8
    one = next(p for p in bench.points() if p["id"] == "nodes-2.batch-16" and p["repetition"] == 1)
    assert one["status"] == "ok"
    assert one["settings"] == {"nodes": 2, "batch": 16}
    assert one["metrics"]["images_per_s"] == 32
    assert Path(one["run_dir"]).is_dir()
    assert one["run_id"] == Path(one["run_dir"]).name
    assert {tuple(call["nodes"]) for call in bench.calls} == {("node-0",), ("node-0", "node-1")}
    assert {call["settings"]["epochs"] for call in bench.calls} == {"2"}


def test_a_plan_says_once_where_results_would_be(bench):
    said = bench("--plan")
    assert f"results would be in {bench.folder}" in said.stdout
    assert str(bench.folder) not in said.stderr
    bench.file.write_text(PLAIN.replace("16, 32", "16").replace("1, 2", "1"))
    bench.behave(failing="16")
    bench()
    assert "campaign mine: 1 point x 2, 0 runs have ended, 2 are left" in bench("--new").stderr
    for path in (bench.folder / "points").glob("*.1.json"):
        path.unlink()
    assert "1 point x 2, 1 run has ended, 1 is left" in bench("--plan").stderr


def test_what_the_campaign_is_stands_in_its_folder(bench):
    bench()
    header = json.loads((bench.folder / "campaign.json").read_text())
    assert header["schema"] == "gpubed/campaign/1"
    assert (header["name"], header["job"], header["repeat"]) == ("mine", "digits", 2)
    assert header["factors"] == {"nodes": [1, 2], "batch": [16, 32]}
    assert header["command"] == f"gpubed bench lab {bench.file}"
    assert [node["name"] for node in header["nodes"]] == ["node-0", "node-1", "node-2"]
    assert header["git"] is None
    assert header["simulated"] is False
    assert len(header["digest"]) == 64


def test_the_result_is_a_table_and_a_document(bench):
    done = bench()
    assert "8 of 8" in done.stderr
    assert "4 points x 2" in done.stderr
    assert "images_per_s" in done.stdout
    assert "±" in done.stdout
    document = json.loads(bench("--json").stdout)
    assert document["schema"] == "gpubed/bench/1"
    assert document["left"] == 0
    assert {"id", "status", "repetition", "settings", "run_id", "metrics"} <= set(
        document["points"][0]
    )
    assert len(document["points"]) == 8
    assert len(bench.calls) == 8, "what has ended was run again"


def test_a_job_whose_first_metric_is_a_table_is_shown_by_its_bandwidth(bench):
    bench.file.write_text(
        PLAIN.replace("digits", "allreduce")
        .replace(", batch: [16, 32]", "")
        .replace("settings: {epochs: 2}\n", "")
    )
    links = [{"src": "node-0", "dst": "node-1", "measured_bps": 9.4e7}]
    bench.behave(metrics={"links": links, "links_off": 0, "busbw_bps": 9.2e7})
    done = bench()
    assert "busbw_bps (± 95 %)" in done.stdout
    assert done.stdout.count("92 Mbit/s") == 2
    assert "repetition 0: busbw_bps 92 Mbit/s" in done.stderr


@pytest.mark.parametrize(
    ("value", "lacks"), [("fast", True), (True, True), (1e31, True), (None, False), (5, False)]
)
def test_bench_and_report_agree_on_what_a_point_lacks(bench, value, lacks):
    bench.behave(metrics={"images_per_s": value, "loss": 0.5})
    done = bench("--json")
    assert done.return_value == int(lacks)
    for point in json.loads(done.stdout)["points"]:
        assert point["status"] == ("failed" if lacks else "ok")
        assert point.get("reason", "") == ("it gave no images_per_s" if lacks else "")
    found = analyse(read.load(bench.paths, "mine"))
    assert len(found.failed) == (8 if lacks else 0)


@pytest.mark.parametrize("batch", ["16", "32"])
def test_so_they_do_whichever_of_the_points_comes_first(bench, batch):
    bench.behave(lacks=batch)
    assert bench().return_value == 1
    failed = {(one["settings"]["batch"], one["reason"]) for one in bench.points() if one["reason"]}
    assert failed == {(int(batch), "it gave no images_per_s")}
    assert len(analyse(read.load(bench.paths, "mine")).failed) == 4


def test_a_job_without_figures_has_no_column_for_them(bench, monkeypatch):
    words = jobfile.load("digits").model_copy(
        update={"metrics": {"device": jobfile.Metric(unit="")}, "sanity": ()}
    )
    monkeypatch.setattr(jobfile, "load", lambda *_: words)
    bench.behave(metrics={"device": "cpu"})
    done = bench()
    assert done.return_value == 0
    assert "95 %" not in done.stdout
    assert "device" not in done.stdout


def test_a_plan_runs_nothing_and_writes_nothing(bench):
    done = bench("--plan", "--json")
    document = json.loads(done.stdout)
    assert {point["status"] for point in document["points"]} == {"pending"}
    assert len(document["points"]) == 8
    assert "time left unknown" in done.stderr
    assert bench.calls == []
    assert not bench.folder.exists()


def test_the_order_is_random_and_repeats_itself(bench):
    bench()
    first = bench.calls
    rounds = [[(c["nodes"], c["settings"]) for c in first[at : at + 4]] for at in (0, 4)]
    assert rounds[0] != rounds[1]
    bench("--new")
    asked = [[(c["nodes"], c["settings"]) for c in calls] for calls in (first, bench.calls[8:])]
    assert asked[0] == asked[1]


def test_a_point_that_fails_is_kept_and_the_rest_goes_on(bench):
    bench.behave(fails="16")
    done = bench()
    assert done.return_value == 1
    assert len(bench.points()) == 8
    reasons = {p["reason"] for p in bench.points() if p["status"] == "failed"}
    assert reasons == {"the job ended with exit code 7"}
    assert "--again-failed" in done.stderr
    bench.behave()
    assert bench().return_value == 1, "what failed was forgotten"
    assert len(bench.calls) == 8
    assert bench("--again-failed").return_value == 0
    assert len(bench.calls) == 12
    assert {p["status"] for p in bench.points()} == {"ok"}
    assert len(list((bench.folder / "points" / "former").iterdir())) == 4


def test_an_error_of_a_run_is_its_points_reason(bench):
    bench.behave(unreachable="32")
    assert bench().return_value == 1
    failed = [p for p in bench.points() if p["status"] == "failed"]
    assert len(failed) == 4
    assert (failed[0]["reason"], failed[0]["run_id"]) == ("node-2 does not answer", "")


def test_without_enough_nodes_a_point_fails_and_the_others_go_on(bench):
    bench.behave(interrupted="32")
    assert bench().return_value == 130
    bench.behave()
    (bench.root / "lost").write_text("node-1 node-2")
    assert bench().return_value == 1
    by_id = {}
    for point in bench.points():
        by_id.setdefault(point["id"].split(".")[0], set()).add(point["reason"])
    assert by_id["nodes-1"] == {""}
    (lost,) = by_id["nodes-2"] - {""}
    assert "node-1 may not be used, and no other stands in for it" in lost
    assert "node-1 is left out: lost" in lost


def test_a_campaign_that_names_no_nodes_never_shrinks_unnoticed(bench):
    bench.file.write_text(PLAIN.replace("nodes: [1, 2], ", ""))
    bench.behave(interrupted="32")
    assert bench().return_value == 130
    bench.behave()
    (bench.root / "lost").write_text("node-2")
    assert bench().return_value == 1
    assert any("node-2 may not be used" in point["reason"] for point in bench.points())
    assert all(len(call["nodes"]) == 3 for call in bench.calls)


def test_no_other_node_takes_the_place_of_one_that_was_lost(bench):
    """It may be of another kind, and its figures would be averaged with the first one's."""
    bench.behave(interrupted="32")
    assert bench().return_value == 130
    bench.behave()
    (bench.root / "lost").write_text("node-1")
    assert bench().return_value == 1
    used = {tuple(call["nodes"]) for call in bench.calls}
    assert ("node-0", "node-2") not in used
    assert any("node-1 may not be used" in point["reason"] for point in bench.points())


@pytest.mark.parametrize("what", ["the job's files", "the recipe", "gpubed"])
def test_points_that_are_made_with_something_else_are_none_of_the_campaign(bench, what):
    bench.behave(interrupted="32")
    assert bench().return_value == 130
    header = bench.folder / "campaign.json"
    told = json.loads(header.read_text())
    told["made_with"][what] = "other"
    header.write_text(json.dumps(told))
    with pytest.raises(UsageError, match=f"this has changed: {what}") as refused:
        bench()
    assert "--new" in refused.value.hint
    assert bench("--new").return_value is not None


def granted(bench, **changes):
    """Change the first node of the allocation, as another `up` would."""
    told = json.loads(bench.paths.allocation.read_text())
    told["nodes"][0].update(changes)
    bench.paths.allocation.write_text(json.dumps(told))


def facts(bench, id_="id-node-0", **changes):
    """Let the first node say what it is made of."""
    bench.paths.facts.mkdir(exist_ok=True)
    said = {"schema": "gpubed/facts/2", "host": "h", "kernel": "6", "cpus": 8}
    said |= {"memory_kib": 16 << 20, "driver": {"loaded": "570.1"}, **changes}
    (bench.paths.facts / f"{id_}.json").write_text(json.dumps(said))


def on_machines_of_their_own(bench):
    """Let the nodes be no containers of one host, as those of a testbed are."""
    told = json.loads(bench.paths.allocation.read_text())
    bench.paths.allocation.write_text(json.dumps({**told, "one_host": False}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda b: granted(b, slots=4), "node-0's slots was 1 and is 4"),
        (lambda b: granted(b, gpus=2), "node-0's gpus was 0 and is 2"),
        (lambda b: granted(b, name="other"), "node-0's slots was 1 and is not there"),
        (lambda b: facts(b, cpus=4), "node-0's hardware was 8 CPUs, 16 GiB and is 4 CPUs, 16 GiB"),
        (lambda b: facts(b, driver={"loaded": "580.2"}), "node-0's driver was 570.1 and is 580.2"),
        (
            lambda b: b.paths.spec.write_text(
                b.paths.spec.read_text() + "services: {monitoring: {}}\n"
            ),
            "cluster.yml: services.monitoring was not there and is {",
        ),
        (
            lambda b: b.paths.spec.write_text(
                b.paths.spec.read_text() + "services: {jupyterlab: {port: 9999}}\n"
            ),
            "cluster.yml: services.jupyterlab.port was 8888 and is 9999; points",
        ),
    ],
)
def test_points_on_other_machines_are_none_of_the_campaign(bench, change, said):
    facts(bench)
    bench.behave(interrupted="32")
    assert bench().return_value == 130
    ended = bench.points()
    change(bench)
    with pytest.raises(UsageError) as refused:
        bench()
    assert said in refused.value.message
    assert "--new" in refused.value.hint
    assert "put it back" in refused.value.hint
    assert bench.points() == ended


def test_another_machine_of_a_testbed_is_refused_and_nobody_shall_put_it_back(bench):
    on_machines_of_their_own(bench)
    facts(bench)
    bench.behave(interrupted="32")
    assert bench().return_value == 130
    granted(bench, id="id-another")
    facts(bench, "id-another")
    with pytest.raises(UsageError, match="node-0's id was id-node-0 and is id-another") as refused:
        bench()
    assert refused.value.hint.startswith("`--new` begins again")


def test_a_container_made_anew_on_the_same_machine_is_that_machine(bench):
    facts(bench)
    bench.behave(interrupted="32")
    assert bench().return_value == 130
    bench.behave()
    granted(bench, id="id-another")
    facts(bench, "id-another")
    assert bench().return_value == 0


@pytest.mark.parametrize("factors", ["nodes: [1, 2]", "ranks: [1, 2]"])
def test_a_node_that_no_point_uses_may_be_another(bench, factors):
    """A cluster that was made smaller and larger again has another last node."""
    bench.file.write_text(PLAIN.replace("nodes: [1, 2]", factors))
    on_machines_of_their_own(bench)
    bench.behave(interrupted="32")
    assert bench().return_value == 130
    bench.behave()
    told = json.loads(bench.paths.allocation.read_text())
    told["nodes"][2] |= {"id": "id-another", "slots": 4}
    bench.paths.allocation.write_text(json.dumps(told))
    assert bench("--plan").return_value == 0
    assert bench().return_value == 0


def test_what_says_nothing_of_a_measurement_may_change(bench):
    bench.behave(interrupted="32")
    assert bench().return_value == 130
    bench.behave()
    text = bench.paths.spec.read_text().replace("count: 3", "count: 4")
    bench.paths.spec.write_text(f"# mine\n{text}owner: me\nlease: {{duration: 3 d}}\n")
    told = json.loads(bench.paths.allocation.read_text())
    told["nodes"].append({**told["nodes"][-1], "name": "node-3", "id": "id-node-3"})
    bench.paths.allocation.write_text(json.dumps(told))
    facts(bench)  # which nobody knew before
    assert bench().return_value == 0
    assert not any("node-3" in call["nodes"] for call in bench.calls)


def test_a_campaign_waits_for_no_run_that_is_at_work(bench):
    with runlock.measuring(bench.paths.state, "run", shared=True):
        with pytest.raises(Locked, match="`gpubed run`"):
            bench()
        with runlock.measuring(bench.paths.state, "run", shared=True):
            pass
    assert bench.calls == []
    assert bench().return_value == 0


def test_a_campaign_is_alone_while_it_measures(bench, monkeypatch):
    refused = []
    real = stand_in_job.run

    def run(*words, **named):
        for shared in (True, False):
            with pytest.raises(Locked), runlock.measuring(bench.paths.state, "x", shared=shared):
                pass
        for verb in (["run", "lab", "digits"], ["verify", "lab"]):
            done = CliRunner().invoke(cli.build(), verb, standalone_mode=False)
            refused.append(done.exception)
        return real(*words, **named)

    monkeypatch.setattr("gpubed.jobs.execution.run", run)
    bench.file.write_text(PLAIN.replace("[1, 2], batch: [16, 32]", "[1]").replace("2\n", "1\n"))
    assert bench().return_value == 0
    assert [type(error) for error in refused] == [Locked, Locked]


def test_the_sets_of_a_campaign_that_began_again_are_others(bench):
    bench()
    first = {path.name for path in bench.paths.runs.iterdir()}
    bench("--new")
    assert first
    kins = {call["kin"] for call in bench.calls}
    assert len(kins) == 2 * 4, "four points, begun twice"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("batch: [16, 32]", "batch: [32, 32.0]"), "a value is there twice"),
        (("batch: [16, 32]", 'batch: [32, "032"]'), "a value is there twice"),
        (("batch: [16, 32]", "rate: [1bit/s]"), "at least 1000000"),
        (("repeat: 2", "repeat: 3\nstop: {metric: device, relative_width: 0.1}"), "is no number"),
        (("job: digits", "job: imagenet\nsettings: {checkpoint: x}"), "not their own"),
    ],
)
def test_a_matrix_that_cannot_be_measured_is_refused(bench, change, why):
    text = PLAIN.replace(*change)
    if "imagenet" in text:
        text = text.replace("settings: {epochs: 2}\n", "").replace(", batch: [16, 32]", "")
    bench.file.write_text(text)
    with pytest.raises(GpubedError, match=why):
        bench()
    assert bench.calls == []


def test_a_head_that_is_lost_stops_the_campaign_and_fails_no_point(bench, monkeypatch):
    def refuse(*_):
        raise GpubedError("the head node-0 is not well")

    bench.behave(interrupted="32")
    assert bench().return_value == 130
    ended = len(bench.points())
    bench.behave()
    monkeypatch.setattr("gpubed.configuration.health.usable", refuse)
    with pytest.raises(GpubedError, match="the head"):
        bench()
    assert len(bench.points()) == ended


def test_an_interruption_loses_the_point_at_work_only(bench):
    bench.behave(interrupted="32")
    assert bench().return_value == 130
    ended, called = bench.points(), len(bench.calls)
    assert called == len(ended) + 1
    bench.behave()
    assert bench().return_value == 0
    assert len(bench.points()) == 8
    assert len(bench.calls) == 8 + 1
    assert all(point in bench.points() for point in ended)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_whatever_kills_it_the_next_one_goes_on(bench, number):
    bench.behave(seconds=0.3)
    process = bench.process()
    deadline = time.monotonic() + 60
    while len(bench.calls) < 4 and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == (-9 if number == signal.SIGKILL else 130), said
    ended = bench.points()
    assert 3 <= len(ended) < 8
    bench.behave()
    assert bench().return_value == 0
    ran = [(c["nodes"], c["settings"]) for c in bench.calls]
    assert len(ran) == 9, "more than the point at work was repeated"
    assert len(bench.points()) == 8
    assert all(point in bench.points() for point in ended)


def test_another_campaign_of_the_name_is_refused_with_what_changed(bench):
    bench()
    bench.file.write_text(PLAIN.replace("[16, 32]", "[16, 64]").replace("repeat: 2", "repeat: 3"))
    with pytest.raises(UsageError) as refused:
        bench()
    assert "factors.batch was [16, 32] and is [16, 64]" in refused.value.message
    assert "repeat was 2 and is 3" in refused.value.message
    assert "--new" in refused.value.hint
    assert len(bench.calls) == 8


def test_a_new_beginning_keeps_what_is_there(bench):
    bench()
    kept = bench.points()
    bench.file.write_text(PLAIN.replace("repeat: 2", "repeat: 1"))
    done = bench("--new")
    assert done.return_value == 0
    assert len(bench.points()) == 4
    (aside,) = (path for path in bench.paths.campaigns.iterdir() if path != bench.folder)
    assert aside.name.startswith("mine.20")
    assert len(list((aside / "points").glob("*.json"))) == len(kept)


def test_another_cluster_of_the_name_is_another_measurement(bench):
    bench()
    text = bench.paths.allocation.read_text()
    bench.paths.allocation.write_text(text.replace("6f0c0000", "7f0c0000"))
    with pytest.raises(UsageError, match="another cluster of this name"):
        bench()


def test_two_at_once_are_refused(bench):
    with runlock.hold(bench.paths.state, "bench"), pytest.raises(Locked) as refused:
        bench()
    assert refused.value.exit_code == 5


@pytest.mark.parametrize("change", ["[1, 2]", "[16, 32]"])
def test_what_is_wrong_is_said_before_anything_starts(bench, change):
    bench.file.write_text(PLAIN.replace(change, "[1, 9]" if change == "[1, 2]" else "[16, x]"))
    with pytest.raises(UsageError, match=r"mine\.yml:3"):
        bench()
    assert bench.calls == []
    assert not bench.folder.exists()


def test_repetitions_end_once_the_interval_is_narrow(bench):
    stop = "repeat: 10\nstop: {metric: images_per_s, relative_width: 0.05, at_least: 3}\n"
    bench.file.write_text(PLAIN.replace("repeat: 2\n", stop))
    assert bench().return_value == 0
    assert len(bench.calls) == 4 * 3
    assert json.loads(bench("--json").stdout)["left"] == 0


def test_ranks_may_be_chosen_instead_of_nodes(bench):
    bench.file.write_text(PLAIN.replace("nodes: [1, 2]", "ranks: [3]"))
    assert bench().return_value == 0
    assert {call["ranks"] for call in bench.calls} == {3}


def test_an_environment_stands_for_a_container(bench):
    bench.file.write_text(
        PLAIN.replace("nodes: [1, 2]", "environment: [host, docker]")
        + "environments: {docker: {container: my/image}}\n"
    )
    assert bench().return_value == 0
    assert {call["container"] for call in bench.calls} == {None, "my/image"}


def test_a_point_finds_its_links_at_its_rate_and_leaves_them_as_declared(bench, monkeypatch):
    told = []
    monkeypatch.setattr(
        rates.Links, "_shape", lambda self, node, bps: told.append((node.name, bps))
    )
    bench.file.write_text(PLAIN.replace("batch: [16, 32]", "rate: [50M, 200M]"))
    assert bench().return_value == 0
    assert {call["rate_bps"] for call in bench.calls} == {50_000_000, 200_000_000}
    assert ("node-1", 50_000_000) in told
    assert not bench.paths.reshaped.exists()


def carried(monkeypatch, bps):
    """Let links carry so much, whatever they are held to, judged as `verify` does."""
    row = {"src": "node-0", "dst": "node-1", "measured_bps": bps}

    def measure(cluster):
        held = cluster.allocation.experiment.rate_bps
        return [{**row, "floor_bps": 0.95 * held, "ceiling_bps": 1.05 * held}]

    monkeypatch.setattr(rates.Links, "_shape", lambda *_: None)
    monkeypatch.setattr(linkrates, "measure", measure)


def test_what_links_carried_before_a_point_is_kept_with_it(bench, monkeypatch):
    carried(monkeypatch, 50.4e6)
    bench.file.write_text(PLAIN.replace("batch: [16, 32]", "rate: [50M]"))
    assert bench().return_value == 0
    for point in bench.points():
        assert point["links"] == [
            {
                "src": "node-0",
                "dst": "node-1",
                "measured_bps": 50.4e6,
                "floor_bps": 47.5e6,
                "ceiling_bps": 52.5e6,
            }
        ]


def test_a_point_whose_links_carry_another_rate_fails_before_its_run(bench, monkeypatch):
    carried(monkeypatch, 50.4e6)
    bench.file.write_text(PLAIN.replace("batch: [16, 32]", "rate: [50M, 200M]"))
    assert bench().return_value == 1
    assert {call["rate_bps"] for call in bench.calls} == {50_000_000}
    failed = [point for point in bench.points() if point["status"] == "failed"]
    assert {point["settings"]["rate"] for point in failed} == {"200M"}
    (reason,) = {point["reason"] for point in failed}
    assert reason == (
        "link node-0>node-1 carries 50.4 Mbit/s before the run, which must be "
        "≥ 190 Mbit/s and ≤ 210 Mbit/s"
    )
    assert {point["links"][0]["measured_bps"] for point in failed} == {50.4e6}


def test_links_that_no_point_holds_to_a_rate_are_not_measured(bench, monkeypatch):
    monkeypatch.setattr(linkrates, "measure", lambda *_: pytest.fail("they were"))
    assert bench().return_value == 0


def test_a_plan_says_which_rates_cannot_be_had(bench):
    bench.file.write_text(PLAIN.replace("batch: [16, 32]", "rate: [50M, 100G]"))
    with pytest.raises(UsageError, match="100G"):
        bench("--plan")


def test_a_failure_that_is_not_repeated_stays_one(bench):
    stop = "repeat: 4\nstop: {metric: images_per_s, relative_width: 0.05, at_least: 2}\n"
    bench.file.write_text(PLAIN.replace("repeat: 2\n", stop))
    bench.behave(fails="16")
    assert bench().return_value == 1
    # Of a point that is known well enough by now, one repetition had failed.
    folder = Folder(bench.folder)
    failed = [p for p in folder.ended().values() if p.status == "failed"]
    by_id = {}
    for point in sorted(failed, key=lambda p: p.key):
        by_id.setdefault(point.id, []).append(point)
    for points in by_id.values():
        for point in points[1:]:
            (bench.folder / "points" / f"{point.id}.{point.repetition}.json").unlink()
            folder.keep(point.model_copy(update={"status": "ok", "reason": ""}))
    bench.behave()
    before = len(bench.calls)
    assert bench("--again-failed").return_value == 1, "a failure has vanished"
    assert len(bench.calls) == before, "it was known well enough"
    assert [p["status"] for p in bench.points()].count("failed") == 2
    assert not (bench.folder / "points" / "former").exists()


def test_a_failure_is_there_until_its_repetition_has_ended(bench):
    bench.behave(fails="16")
    assert bench().return_value == 1
    bench.behave(interrupted="16")
    assert bench("--again-failed").return_value == 130
    assert [p["status"] for p in bench.points()].count("failed") == 4
    bench.behave()
    assert bench("--again-failed").return_value == 0
    assert len(list((bench.folder / "points" / "former").iterdir())) == 4


@pytest.mark.parametrize("damage", ["", "{"])
def test_a_point_that_was_cut_off_has_a_way_on(bench, damage):
    assert bench().return_value == 0
    path = bench.folder / "points" / "nodes-1.batch-16.0.json"
    path.write_text(damage)
    with pytest.raises(GpubedError, match=r"nodes-1\.batch-16\.0\.json") as refused:
        bench()
    assert f"gpubed bench lab {bench.file} --again-failed" in refused.value.hint
    assert bench("--again-failed").return_value == 0
    assert len(bench.calls) == 9
    assert len(bench.points()) == 8
    assert [p.read_text() for p in (bench.folder / "points/former").iterdir()] == [damage]


def test_a_beginning_that_was_cut_off_has_a_way_on(bench):
    assert bench().return_value == 0
    (bench.folder / "campaign.json").write_text("")
    with pytest.raises(GpubedError, match=r"campaign\.json") as refused:
        bench()
    assert "--new" in refused.value.hint
    assert bench("--new").return_value == 0
    for path in (bench.folder / "points").iterdir():
        path.unlink()
    (bench.folder / "campaign.json").write_text("")
    assert bench().return_value == 0, "nothing had ended, so nothing is lost"


def test_a_point_that_was_edited_is_refused(bench):
    assert bench().return_value == 0
    path = bench.folder / "points" / "nodes-1.batch-16.0.json"
    told = json.loads(path.read_text())
    path.write_text(json.dumps({**told, "settings": {"nodes": 2, "batch": 16}}))
    with pytest.raises(GpubedError, match="settings"):
        bench()
    path.write_text(json.dumps(told))
    stray = bench.folder / "points" / "nodes-3.batch-16.0.json"
    stray.write_text(json.dumps({**told, "id": "nodes-3.batch-16"}))
    with pytest.raises(GpubedError, match="has no such point"):
        bench()


def test_links_are_put_back_after_an_interruption(bench, monkeypatch):
    told = {}

    def shape(self, node, bps):
        told[node.name] = self._rates[node.name] = bps

    monkeypatch.setattr(rates.Links, "_shape", shape)
    bench.file.write_text(PLAIN.replace("nodes: [1, 2]", "rate: [50M]"))
    bench.behave(interrupted="16")
    assert bench().return_value == 130
    assert set(told.values()) == {200_000_000}
    assert not bench.paths.reshaped.exists()


@pytest.mark.parametrize("place", [0, 1])
def test_the_campaigns_of_the_page_run_as_they_are_written(bench, monkeypatch, place):
    monkeypatch.setattr(rates.Links, "_shape", lambda *_: None)
    page = (ROOT / "docs/how-to/benchmark.md").read_text()
    bench.file.write_text(re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[place])
    assert bench().return_value == 0
    assert len(bench.calls) == [6 * 3, 3 * 3][place]  # the second stops at the least that it may


def test_an_image_that_nodes_lack_is_said_before_anything_starts(bench, monkeypatch):
    def refuse(*words):
        raise GpubedError(f"image {words[-1]} is not on node-2")

    monkeypatch.setattr("gpubed.jobs.images.require", refuse)
    bench.file.write_text(
        PLAIN.replace("nodes: [1, 2]", "environment: [host, docker]")
        + "environments: {docker: {container: my/image}}\n"
    )
    with pytest.raises(GpubedError, match="my/image is not on node-2"):
        bench()
    assert bench.calls == []


def test_what_is_left_is_reckoned_from_what_points_took(bench):
    source = file.load(str(bench.file), bench.paths.project)
    points = matrix.expand(source, jobfile.load("digits"))
    series = Series(source.campaign, points)
    assert (series.progress().left, series.progress().seconds) == (8, None)
    bench()
    record = Folder(bench.folder).ended()[points[0].id, 0].model_copy(update={"seconds": 10.0})
    other = record.model_copy(update={"id": points[1].id, "seconds": 20.0})
    series.ended = {record.key: record, other.key: other}
    # One repetition of each of these two, and two of each of the others at the mean of both.
    assert (series.progress().left, series.progress().seconds) == (6, 10 + 20 + 4 * 15)


def test_node_hours_are_told_where_nodes_are_lent_for_a_time(bench, monkeypatch):
    monkeypatch.setattr(backend_config.named("local"), "leases", True)
    assert "node-hours: 3 each hour" in bench("--plan").stderr
    bench.behave(interrupted="32")
    bench()
    folder = Folder(bench.folder)
    for record in folder.ended().values():
        folder.keep(record.model_copy(update={"seconds": 3600.0}))
    left = 8 - len(folder.ended())
    assert f"node-hours: about {3 * left}\n" in bench("--plan").stderr


def test_no_run_is_measured_on_links_that_a_bench_has_changed(bench):
    bench.paths.reshaped.touch()
    with pytest.raises(GpubedError, match="another rate than declared") as refused:
        CliRunner().invoke(
            cli.build("run"),
            ["run", "lab", "digits"],
            standalone_mode=False,
            catch_exceptions=False,
        )
    assert "gpubed up lab" in refused.value.hint


def test_a_testbed_that_runs_jobs_has_no_nodes_to_choose_from(bench):
    spec = {"version": 1, "backend": BACKENDS["gpulab"], "recipe": "cuda12"}
    job = {"count": 1, "gpus": 1, "machine": {"cpus": 4, "memory": "16 GB"}}
    bench.paths.spec.write_text(json.dumps({**spec, "nodes": [job]}))
    granted = json.loads(bench.paths.allocation.read_text())
    none = {"nodes": [], "experiment": None, "backend": "gpulab"}
    bench.paths.allocation.write_text(json.dumps({**granted, **none}))
    with pytest.raises(UsageError, match="gpulab lends no nodes to choose from"):
        bench()
    bench.file.write_text(PLAIN.replace("nodes: [1, 2], ", ""))
    assert bench().return_value == 0
    assert len(bench.calls) == 4


def test_a_link_that_cannot_be_put_back_is_told_also_after_an_interruption(bench, monkeypatch):
    def shape(self, node, bps):
        if bps == self.declared:
            raise GpubedError(f"{node.name} does not answer")
        self._rates[node.name] = bps

    monkeypatch.setattr(rates.Links, "_shape", shape)
    bench.file.write_text(PLAIN.replace("nodes: [1, 2]", "rate: [50M]"))
    bench.behave(interrupted="16")
    done = bench()
    assert done.return_value == 130
    assert "has not got its declared rate back: node-1: node-1 does not answer" in done.stderr
    assert "gpubed up lab" in done.stderr
    assert bench.paths.reshaped.exists()


def test_a_link_that_is_left_at_another_rate_is_no_success(bench, monkeypatch):
    def shape(self, node, bps):
        if bps == self.declared and node.name == "node-1":
            raise GpubedError("node-1 does not answer")
        self._rates[node.name] = bps

    monkeypatch.setattr(rates.Links, "_shape", shape)
    bench.file.write_text(PLAIN.replace("nodes: [1, 2]", "rate: [50M]"))
    done = bench()
    assert done.return_value == 1
    assert {p["status"] for p in bench.points()} == {"ok"}
    assert "node-1 does not answer" in done.stderr
