"""Campaigns on GPULab: points that are one job of ten GPUs, and points that are ten jobs of one.

Against a server over TLS that runs each job, as processes; gpubed runs as a user runs it. The
job is a test's own, which needs no Horovod.
"""

import json
import signal
import time

import pytest

from support.gpulab.site import Site

pytestmark = pytest.mark.testbeds

CAMPAIGN = """schema: gpubed/campaign-file/1
job: quick
factors: {seed: [1, 2]}
repeat: 2
"""


@pytest.fixture
def site(tmp_path):
    with Site(tmp_path) as made:
        write(made, "seeds", CAMPAIGN)
        yield made


def write(site, name, text):
    folder = site.project / "campaigns"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.yml").write_text(text)


def points(site, name="seeds"):
    folder = site.project / ".gpubed" / "gl" / "campaigns" / name / "points"
    return {path.name: json.loads(path.read_text()) for path in folder.glob("*.json")}


def test_points_of_one_job_are_worlds_of_ten(site):
    site.call("up", "gl")
    told = site.json("bench", "gl", "seeds")
    assert [point["status"] for point in told["points"]] == ["ok"] * 4
    assert {point["metrics"]["world_size"] for point in told["points"]} == {10}
    values = {name: point["metrics"]["value"] for name, point in points(site).items()}
    assert values == {f"seed-{seed}.{n}.json": 10 * seed for seed in (1, 2) for n in (0, 1)}
    jobs = site.service.jobs.values()
    assert [job.status for job in jobs] == ["FINISHED"] * 4
    assert {job.document["request"]["resources"]["gpus"] for job in jobs} == {10}
    again = site.call("bench", "gl", "seeds")
    assert "none is left" in again.stderr
    assert len(site.service.jobs) == 4, "no point is run twice"
    said = site.call("report", "gl").stdout
    assert "(gpulab, 0 nodes) at 2 points: 4 runs, of which 4 ended well" in said


def test_points_of_ten_jobs_are_means_of_ten_trials(site):
    site.write("gl", count=10, gpus=1)
    site.call("up", "gl")
    told = site.json("bench", "gl", "seeds")
    assert [point["status"] for point in told["points"]] == ["ok"] * 4
    metrics = [point["metrics"] for point in told["points"]]
    assert {each["world_size"] for each in metrics} == {1}
    # The seeds of a point's trials are 1 to 10, or 2 to 11.
    assert sorted(each["value"] for each in metrics) == [55, 55, 65, 65]
    assert len(site.service.jobs) == 40
    names = {job.document["name"] for job in site.service.jobs.values()}
    assert len(names) == 40
    site.call("report", "gl")


def test_both_shapes_stand_in_one_report(site):
    site.write("trials", count=10, gpus=1)
    for cluster in ("gl", "trials"):
        site.call("up", cluster)
        site.call("bench", cluster, "seeds")
    told = site.json("report", "gl", "--with", "trials")
    where = [
        (group["settings"]["environment"], group["settings"]["ranks"]) for group in told["groups"]
    ]
    assert where == [("gl", 10)] * 2 + [("trials", 1)] * 2
    assert [one["campaign"]["cluster"] for one in told["environments"]] == ["gl", "trials"]


def test_a_point_whose_trials_fail_is_kept_with_its_reason_and_the_rest_goes_on(site):
    site.write("gl", count=3, gpus=1)
    site.call("up", "gl")
    write(site, "fails", CAMPAIGN.replace("repeat: 2", "settings: {fail: 4}"))
    told = site.json("bench", "gl", "fails", rc=1)
    status = {point["id"]: (point["status"], point["reason"]) for point in told["points"]}
    assert status["seed-1"] == ("ok", "")
    assert status["seed-2"][0] == "failed"
    assert "trial 2: job " in status["seed-2"][1]


def test_an_interrupted_campaign_cancels_its_jobs_and_goes_on(site):
    site.call("up", "gl")
    write(site, "slow", CAMPAIGN.replace("repeat: 2", "settings: {sleep: 2}"))
    process = site.start("bench", "gl", "slow")
    until = time.monotonic() + 60
    while len(site.service.jobs) < 2:
        assert time.monotonic() < until, "the second point did not begin"
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    first = points(site, "slow")
    assert len(first) == 1
    assert sorted(job.status for job in site.service.jobs.values()) == ["CANCELLED", "FINISHED"]
    told = site.json("bench", "gl", "slow")
    assert [point["status"] for point in told["points"]] == ["ok"] * 2
    assert first.items() <= points(site, "slow").items()
    assert len(site.service.jobs) == 3


@pytest.mark.parametrize("other", [{"count": 4, "gpus": 1}, {"count": 1, "gpus": 10}])
def test_points_of_another_shape_are_none_of_the_campaign(site, other):
    """A mean of four trials is another measurement than one of ten."""
    site.write("gl", count=10, gpus=1)
    site.call("up", "gl")
    write(site, "one", CAMPAIGN.replace("repeat: 2", "repeat: 1"))
    site.call("bench", "gl", "one")
    site.write("gl", **other)
    site.call("up", "gl")
    said = site.call("bench", "gl", "one", rc=2).stderr
    assert "this has changed" in said
    assert len(site.service.jobs) == 20


@pytest.mark.parametrize(
    ("factor", "line"), [("nodes: [1, 10]", 3), ("ranks: [10]", 3), ("rate: [1G]", 3)]
)
def test_what_jobs_have_not_is_refused_with_its_line(site, factor, line):
    site.call("up", "gl")
    write(site, "wrong", CAMPAIGN.replace("seed: [1, 2]", factor))
    said = site.call("bench", "gl", "wrong", rc=2).stderr
    assert f"wrong.yml:{line}: factors.{factor.partition(':')[0]}" in said
    assert "gpulab lends no nodes to choose from" in said
    assert not site.service.jobs
