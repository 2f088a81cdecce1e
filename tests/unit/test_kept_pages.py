"""The pages of `make test-experiment` and `make test-endurance`, from figures made up here."""

from gpubed.campaigns import matrix, repeat
from gpubed.jobs import jobfile
from support import endurance, experiment, kept

RATIO = {"value": 1.02, "low": 0.99, "high": 1.05}
MEAN = {"mean": 2.0, "half_width": 0.1}


def test_what_other_parts_found_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(endurance, "KEPT", tmp_path / "endurance.json")
    assert endurance.page().endswith("Not measured yet.\n")
    accuracy = {"undisturbed": [0.9, 0.92], "disturbed": [0.91, 0.93]}
    kept.keep(endurance.KEPT, accuracy=accuracy)
    ratios = {"checkpoints": RATIO}
    kept.keep(endurance.KEPT, overhead={"steps": 9, "every": 3, "runs": 2, "ratios": ratios})
    page = endurance.page()
    assert "| disturbed | 0.9200 | 0.0141 | 0.9100 | 0.9300 |" in page
    assert "| checkpoints | 1.020 | 0.990 to 1.050 |" in page
    assert page.count(f", {kept.machine()}.") == 2


def test_faults_tell_what_they_cost(tmp_path, monkeypatch):
    monkeypatch.setattr(endurance, "KEPT", tmp_path / "endurance.json")
    played = [{"fault": "kill-node", "seconds": s, "repeated": r} for s, r in ((70, 4), (90, 9))]
    faults = {"steps": 60, "every": 10, "undisturbed_s": [40, 39, 41], "played": played}
    watch = {"seconds": 7200, "faults": ["kill-node", "stop-sshd", "kill-node"], "repairs": 3}
    kept.keep(endurance.KEPT, faults=faults, watch=watch)
    page = endurance.page()
    assert "| kill-node | 2 | 30 s | 40 s | 50 s | 9 |" in page
    assert "2 x kill-node, 1 x stop-sshd. It repaired 3 times" in page


def test_an_experiment_is_its_points_and_what_was_measured_beside_them(tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "KEPT", tmp_path / "experiment.json")
    metrics = dict.fromkeys(experiment.METRICS, MEAN)
    settings = {"nodes": 2, "batch_size": 32, "rate": "100M"}
    report = {
        "schema": "gpubed/report/1",
        "campaign": {},
        "simulated": False,
        "efficiency": [{"id": "a", "value": 0.5}],
        "limits": [{"limit": "link"}],
        "groups": [{"id": "a", "settings": settings, "metrics": {**metrics, "more": MEAN}}],
    }
    needed = experiment.needed(report)
    assert "more" not in needed["groups"][0]["metrics"]
    ring = {"nodes": 2, "rate": "100M", "measured_s": 4.0, "ring_s": 3.8}
    one = {"id": "a", "before": 1.0, "now": 1.1, "ratio": 1.1, "low": 1.0, "high": 1.2}
    frameworks = {"nodes": 3, "rate": "200M", "runs": 6, "ratio": RATIO}
    repeated = [{**one, "verdict": "no difference shows"}]
    kept.keep(experiment.KEPT, **needed, rings=[ring], frameworks=frameworks, repeated=repeated)
    page = experiment.page()
    assert "| 2 | 32 | 100M | 2.0 ± 0.1 | 50 % | 2.000 s |" in page
    assert "| 2 | 100M | 4.000 s | 3.800 s | 1.05 |" in page
    assert "Horovod trains 1.020 x as many" in page
    assert "| a | 1.0 | 1.1 | 1.100 | 1.000 to 1.200 | no difference shows |" in page


def test_what_is_kept_can_be_repeated_point_by_point(tmp_path):
    factors = {"nodes": [1, 2], "batch_size": [32], "rate": ["100M"]}
    campaign = {"schema": "gpubed/campaign-file/1", "job": "imagenet", "factors": factors}
    ids = [f"nodes-{nodes}.batch_size-32.rate-100M" for nodes in factors["nodes"]]
    settings = [{"nodes": nodes, "batch_size": 32, "rate": "100M"} for nodes in factors["nodes"]]
    summary = {"images_per_s": {"mean": 9.0, "sd": 0.1, "n": 3}}
    report = {
        "schema": "gpubed/report/1",
        "campaign": {"name": "matrix", "campaign": campaign},
        "groups": [
            {"id": id_, "settings": one, "metrics": summary}
            for id_, one in zip(ids, settings, strict=True)
        ],
    }
    kept.keep(tmp_path / "report.json", **report)
    before = repeat.load(tmp_path / "report.json")
    points = matrix.expand(before.source, jobfile.load("imagenet"))
    assert [point.id for point in points] == ids
    assert len(before.samples) == len(ids)


def test_a_ring_sends_each_byte_twice_but_for_its_own_part():
    """Two ranks send S bytes each; 94 of 100 Mbit/s carry 11.75 MB/s."""
    assert experiment.ring_s(2, 11.75e6, 100e6) == 1.0
