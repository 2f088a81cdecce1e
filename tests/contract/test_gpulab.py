"""GPULab's launcher and backend against a server over TLS that runs each job, as processes.

gpubed runs as a user runs it. In place of Horovod's launcher a script starts the ranks;
`tests/e2e/test_gpulab.py` has the real one.
"""

import json
import re
import shutil
import signal
import time
from pathlib import Path

import pytest

from support import changes
from support.gpulab.server import Stumble
from support.gpulab.service import Fault
from support.gpulab.site import Site

QUICK = ("run", "gl", "quick")


@pytest.fixture
def site(tmp_path):
    with Site(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    """What `up` leaves behind, and at which server; nothing else of it depends on that."""
    with Site(tmp_path_factory.mktemp("first")) as made:
        made.call("up", "gl")
        shutil.rmtree(made.project / "inventories")
        return made.project, made.server.url


@pytest.fixture
def up(site, state):
    made, url = state
    shutil.copytree(made, site.project, dirs_exist_ok=True)
    known = site.project / ".gpubed" / "gl"
    for kept in (known / "cluster.json", *(known / "specifications").iterdir()):
        kept.write_text(kept.read_text().replace(url, site.server.url))
    return site


def wait_for(what, seconds=15):
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)


def states(site):
    return sorted(job.status for job in site.service.jobs.values())


def test_one_job_is_one_world_of_all_its_gpus(up):
    result = up.json(*QUICK)
    assert (result["status"], result["world_size"], result["value"]) == ("ok", 10, 10)
    kept = (Path(result["run_dir"]) / "rank-0.env").read_text().splitlines()
    assert {"HOROVOD_RANK=0", "HOROVOD_SIZE=10"} <= {*kept}
    [job] = up.service.jobs.values()
    assert job.status == "FINISHED"
    resources = job.document["request"]["resources"]
    assert (resources["gpus"], resources["minCudaVersion"]) == (10, 12)


def test_ten_jobs_are_ten_worlds_and_one_result(up):
    up.write("gl", count=10, gpus=1)
    result = up.json(*QUICK)
    assert (result["status"], result["world_size"], len(result["trials"])) == ("ok", 1, 10)
    assert [trial["value"] for trial in result["trials"]] == list(range(10, 110, 10))
    value = result["statistics"]["value"]
    assert value.pop("sd") == pytest.approx(30.2765, abs=1e-3)
    assert value == {"mean": 55, "min": 10, "max": 100, "n": 10}
    assert states(up) == ["FINISHED"] * 10


def renewed(site):
    """The certificate was downloaded anew, to another place."""
    copy = site.folder / "renewed.pem"
    copy.write_bytes(site.user.read_bytes())
    copy.chmod(0o600)
    return site.spec(certificate=str(copy))


CHANGES = {
    "more jobs": lambda site: site.spec(count=4, gpus=1),
    "fewer jobs": lambda site: site.spec(count=1, gpus=1),
    "hardware": lambda site: site.spec(gpu_model=["RTX 3080"], gpus=4),
    "image": lambda site: site.spec(image="tests/horovod:2"),
    "project": lambda site: site.spec(project="another"),
    "login": renewed,
    "lease": lambda site: {**site.spec(), "lease": {"duration": "2 h"}},
    "patience, parallel, shm": lambda site: site.spec(patience="5 min", parallel=4, shm="1 GiB"),
    "services that need nodes": lambda site: {**site.spec(), "services": {"monitoring": {}}},
    "an experiment network": lambda site: {
        **site.spec(),
        "networks": {"experiment": {"rate": "1 Gbit/s"}},
    },
}


@pytest.mark.long
@pytest.mark.parametrize("engine", changes.ENGINES)
def test_a_change_costs_nothing_since_jobs_find_what_they_need(up, engine):
    """Planned first, then done; what jobs and runs are found by stays, and so do results."""
    chosen = ("--engine", engine)
    before = up.json("audit", "gl", *chosen)["uuid"]
    up.json(*QUICK)
    jobs, results = set(up.service.jobs), contents(up.project / ".gpubed" / "gl" / "runs")
    assert results
    done, refused = changes.done("gpulab")
    assert [*CHANGES] == [*done, *refused]
    for name in done:
        up.write("gl", CHANGES[name](up))
        operations = {step["op"] for step in up.json("plan", "gl", *chosen)["changes"]}
        assert operations <= {"update"}, name
        up.json("up", "gl", *chosen)
        assert up.json("plan", "gl", *chosen)["changes"] == [], name
    for name in refused:
        up.write("gl", CHANGES[name](up))
        up.call("up", "gl", *chosen, rc=2)
    up.write("gl")
    up.json("up", "gl", *chosen)
    assert up.json("plan", "gl", *chosen)["changes"] == []
    assert up.json("audit", "gl", *chosen)["uuid"] == before
    assert contents(up.project / ".gpubed" / "gl" / "runs") == results
    assert set(up.service.jobs) == jobs, "no change has made or ended a job"
    assert up.json(*QUICK)["status"] == "ok"


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_trials_that_fail_are_named_and_the_others_count(up):
    up.write("gl", count=4, gpus=1)
    done = up.call(*QUICK, "--set", "fail=3", rc=1)
    assert "3 of 4 trials of world size 1 each" in done.stdout
    assert re.search(r"value = 23\.33 ± 38 \(95 %; 10 … 40, n = 3\)", done.stdout)
    assert re.search(r"trial 2: job \S+: GPULab says FAILED, exit code 3", done.stderr)
    assert "rank 0: something is wrong" in done.stderr


def test_trials_beyond_the_least_number_may_fail(up):
    spec = up.spec(count=4, gpus=1)
    spec["nodes"][0]["min"] = 3
    up.write("gl", spec)
    result = up.json(*QUICK, "--set", "fail=3")
    assert (result["status"], result["statistics"]["value"]["n"]) == ("ok", 3)
    assert "exit code 3" in result["left_out"]["trial 2"]
    spec["nodes"][0]["min"] = 4
    up.write("gl", spec)
    assert up.json(*QUICK, "--set", "fail=3", rc=1)["failures"][0].startswith("trial 2: job ")


def test_no_more_jobs_at_a_time_than_fair_use_allows(up):
    up.write("gl", count=4, gpus=1, parallel=2)
    most = []
    process = up.start(*QUICK, "--set", "sleep=1")
    while process.poll() is None:
        most.append(sum(s not in ("FINISHED", "FAILED") for s in states(up)))
        time.sleep(0.02)
    assert process.returncode == 0
    assert max(most) == 2


def test_what_the_job_prints_is_never_taken_for_results(up):
    done = up.call(*QUICK, "--set", "forge=1", "--set", "silent=1", rc=1)
    assert "the job wrote no metrics.json" in done.stderr


def test_a_large_file_stays_on_the_project_storage_and_is_named(up):
    done = up.call(*QUICK, "--set", "large=3000000")
    assert re.search(r"too large to come back, left in \S+: large.bin", done.stderr)
    [run] = (up.storage / "runs").iterdir()
    assert (run / "large.bin").stat().st_size == 3_000_000


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("no-image", "could not be pulled: not found"),
        ("halt", "GPULab halted it to make room for others"),
        ("kill", "GPULab says FAILED, exit code 143"),
        ("delete", "GPULab has no such job: it was deleted"),
        ("truncate", "its log was cut"),
        ("lose-line", "its log was cut"),
    ],
)
def test_a_job_that_did_not_end_well_fails_the_run(up, what, says):
    up.service.faults.append(Fault("quick", what))
    long = ("--set", "sleep=30") if what in ("halt", "kill", "delete") else ()
    large = ("--set", "large=20000")
    done = up.call(*QUICK, *long, *large, rc=1)
    assert says in done.stderr
    if what in ("halt", "kill"):
        assert "\n  | " in done.stderr, "the last lines of the log are told"


def test_a_job_that_waits_longer_than_its_user_is_cancelled(up):
    up.write("gl", patience="1 s")
    up.service.faults.append(Fault("quick", "queued"))
    done = up.call(*QUICK, rc=1)
    assert (
        "waited 1 s for a worker and was cancelled: No worker has enough free GPUs" in done.stderr
    )
    wait_for(lambda: states(up) == ["CANCELLED"])


def test_an_interruption_cancels_the_jobs(up):
    up.write("gl", count=3, gpus=2)
    process = up.start(*QUICK, "--set", "sleep=60")
    wait_for(lambda: sum(job.content().count(b"rank") for job in up.service.jobs.values()) == 6)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert states(up) == ["CANCELLED"] * 3
    assert len(list(up.storage.glob("runs/*/trial-*/stopped-*"))) == 6


def test_down_cancels_what_a_killed_run_left(up):
    up.service.faults.append(Fault("quick", "linger"))
    process = up.start(*QUICK, "--set", "sleep=60")
    wait_for(lambda: states(up) == ["RUNNING"])
    process.kill()
    process.wait()
    [row] = up.json("status", "gl")["jobs"]
    assert row["state"] == "RUNNING"
    assert up.json("audit", "gl")["unrecorded"] == [], "a running job is nobody's leftover"
    down = up.json("down", "gl", "-y")
    assert down["survivors"] == []
    assert len([name for name in down["removed"] if name.startswith("job gpubed-gl-")]) == 1
    assert states(up) == ["CANCELLED"]
    [record] = up.project.glob(".gpubed/gl/runs/*/jobs.json")
    assert [one["id"] for one in json.loads(record.read_text())] == list(up.service.jobs)


def test_down_finds_the_job_of_a_run_that_is_no_longer_listed(up):
    process = up.start(*QUICK, "--set", "sleep=60")
    wait_for(lambda: states(up) == ["RUNNING"])
    process.kill()
    process.wait()
    up.server.stumbles.append(Stumble("GET jobs$", "body", times=100, text='{"items": []}'))
    [row] = up.json("status", "gl")["jobs"]
    assert row["state"] == "RUNNING"
    up.call("down", "gl", "-y")
    assert states(up) == ["CANCELLED"]


def test_another_users_certificate_does_not_make_jobs_look_gone(up):
    """Nobody sees another user's jobs: `down` would forget what could cancel them."""
    process = up.start(*QUICK, "--set", "sleep=60")
    wait_for(lambda: states(up) == ["RUNNING"])
    process.kill()
    process.wait()
    up.write("gl", certificate=str(up.authority.user("bob")))
    said = up.call("down", "gl", "-y", rc=3).stderr
    assert "+user+alice" in said
    assert "backend.certificate" in said
    up.write("gl")
    up.call("down", "gl", "-y")
    assert states(up) == ["CANCELLED"]


def test_down_of_one_cluster_leaves_the_jobs_of_another(up):
    up.write("other")
    up.call("up", "other")
    process = up.start("run", "other", "quick", "--set", "sleep=3")
    wait_for(lambda: states(up) == ["RUNNING"])
    up.call("down", "gl", "-y")
    assert process.wait(30) == 0


@pytest.mark.parametrize(
    "stumble",
    [
        Stumble("GET", "503 busy", times=3),
        Stumble("GET jobs/.*/log", "drop", times=3),
        Stumble("GET jobs/", "500 oops", times=12, skip=2),
    ],
    ids=["5xx", "dropped", "many"],
)
def test_a_service_that_stumbles_is_asked_again(up, stumble):
    up.server.stumbles.append(stumble)
    assert up.json(*QUICK)["status"] == "ok"


@pytest.mark.parametrize("what", ["drop", "500 oops", "504 gone", "late"])
def test_each_question_may_fail_twice_and_nothing_is_lost_or_made_twice(up, what):
    up.write("gl", count=3, gpus=1)
    for question in (
        "GET clusters",
        "GET slaves",
        "GET jobs/[^/]+$",
        "GET jobs/.*/log",
        "GET .*bug",
    ):
        up.server.stumbles.append(Stumble(question, what, times=2))
    result = up.json(*QUICK, "--set", "fail=2", rc=1)
    assert [trial["status"] for trial in result["trials"]] == ["ok", "failed", "ok"]
    assert "exited with status" in result["failures"][0]
    assert states(up) == ["FAILED", "FINISHED", "FINISHED"]
    assert all(stumble.times == 0 for stumble in up.server.stumbles)


def test_a_job_whose_submission_got_no_answer_is_found_not_made_twice(up):
    up.server.stumbles.append(Stumble("POST jobs", "late"))
    assert up.json(*QUICK)["status"] == "ok"
    assert states(up) == ["FINISHED"]


def test_a_job_that_is_listed_late_is_found_not_made_twice(up):
    up.server.stumbles += [
        Stumble("POST jobs", "late"),
        Stumble("GET jobs$", "body", times=3, text='{"items": []}'),
    ]
    done = up.call(*QUICK)
    assert "looking whether the job is there" in done.stderr
    assert states(up) == ["FINISHED"]


def test_a_job_that_may_exist_is_told_and_can_still_be_cancelled(up):
    up.server.stumbles += [
        Stumble("POST jobs", "late"),
        Stumble("GET jobs$", "503 down", times=10_000),
    ]
    done = up.call(*QUICK, "--set", "sleep=60", rc=1)
    assert re.search(r"job gpubed-gl-\S+ may exist all the same", done.stderr)
    assert "gpubed down gl cancels it" in done.stderr
    up.server.stumbles.clear()
    up.call("down", "gl", "-y")
    assert states(up) == ["CANCELLED"]


def test_a_submission_that_never_arrived_fails_and_is_not_repeated(up):
    up.server.stumbles.append(Stumble("POST jobs", "502 bad gateway"))
    done = up.call(*QUICK, rc=1)
    assert "502" in done.stderr
    assert "repeat" not in done.stderr, "that would be a second job, should it come yet"
    assert "gpubed status gl tells; gpubed down gl cancels it" in done.stderr
    assert up.service.jobs == {}


def test_a_service_that_falls_silent_is_given_up_and_its_jobs_go_on(up):
    up.server.stumbles.append(Stumble("GET jobs/", "503 down", times=10_000, skip=2))
    done = up.call(*QUICK, "--set", "sleep=10", rc=1)
    assert "no longer followed" in done.stderr
    assert "gpubed status gl" in done.stderr
    assert states(up) == ["RUNNING"]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("<html>login</html>", "API v4.0"),
        ('{"items": [{"uuid": 1}]}', "API v4.0"),
        ("\xff", "API v4.0"),
    ],
    ids=["html", "other", "not-utf-8"],
)
def test_an_answer_that_is_not_the_apis_is_one_clear_error(up, answer, says):
    up.server.stumbles.append(Stumble("GET jobs", "body", times=100, text=answer))
    done = up.call("status", "gl", rc=1)
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_quota_is_told_and_trials_that_run_go_on(up):
    up.service.quota = 2
    up.write("gl", count=3, gpus=1)
    done = up.call(*QUICK, "--set", "sleep=1", rc=1)
    assert "trial 2: GPULab refuses the job (409): at most 2 jobs" in done.stderr
    assert "2 of 3 trials" in done.stdout
    up.service.quota = 0
    assert "at most 0 jobs" in up.call(*QUICK, rc=4).stderr


def test_a_foreign_project_is_refused(up):
    up.write("gl", project="theirs")
    assert "no permission to submit for project theirs" in up.call(*QUICK, rc=4).stderr


def test_what_no_worker_has_is_refused_before_it_is_submitted(up):
    up.write("gl", gpu_model=["3080"])
    done = up.call(*QUICK, rc=4)
    assert "no worker of GPULab has 10 of them (the largest has 4)" in done.stderr
    assert up.service.jobs == {}
    assert "the largest has 4" in up.call("doctor", "gl", rc=3).stdout
    assert "the largest has 4" in up.json("plan", "gl", rc=4)["obstacles"][0]


def test_plan_says_when_the_jobs_would_have_to_wait(up):
    up.service.workers[0].free[1] = up.service.workers[1].free[1] = 3
    [said] = up.json("plan", "gl", rc=4)["obstacles"]
    assert said == "0 of 1 job(s) would start now, the rest would wait"


def test_resources_lists_clusters_and_their_gpus(up):
    offers = {offer["name"]: offer for offer in up.json("resources", "gl")["offers"]}
    assert (offers["6"]["total"], offers["6"]["free"], offers["6"]["gpus"]) == (2, 2, 16)
    assert offers["5"]["gpu_model"] == "NVIDIA GeForce RTX 3080"


def test_what_is_free_is_ranked_by_the_predicted_rate(up):
    """As docs/how-to/how-many-nodes.md has it."""
    told = up.json("resources", "gl", "--for", "resnet50:64")["offers"]
    assert [offer["name"] for offer in told] == ["6", "5"]
    v100 = told[0]["prediction"]
    assert (v100["gpu"], v100["gpus_per_node"], v100["batch"]) == ("v100", 16, 64)
    assert told[1]["prediction"] is None, "no rate of that GPU is known"


def test_a_plan_predicts_the_experiment_on_the_gpus_that_are_asked_for(up):
    up.write("gl", {**up.spec(), "experiment": {"model": "resnet50", "epochs": 10}})
    [whole] = up.json("plan", "gl")["prediction"]["scaling"]
    assert (whole["gpu"], whole["ranks"], whole["nodes"]) == ("v100", 10, 1)
    assert whole["hours"] == pytest.approx(10 * 1281167 / whole["images_per_s"] / 3600)


def test_an_unchanged_up_plans_nothing_and_down_leaves_nothing(up):
    assert up.json("plan", "gl")["changes"] == []
    assert "nothing to change" in up.call("up", "gl").stderr
    assert up.json("down", "gl", "-y")["survivors"] == []
    assert not (up.project / ".gpubed" / "gl").exists()


@pytest.mark.parametrize("verb", ["verify", "configure", "health", "ssh"])
def test_what_needs_nodes_says_that_there_are_none(up, verb):
    assert "has no nodes: gpulab runs jobs only" in up.call(verb, "gl", rc=1).stderr


def test_a_service_that_keeps_its_workers_to_itself_runs_jobs_all_the_same(up):
    up.server.stumbles.append(Stumble("GET slaves", "403 for administrators", times=10))
    assert up.json(*QUICK)["status"] == "ok"


def test_open_prints_the_testbeds_own_notebooks(up):
    up.write("gl", jupyterhub="https://hub.example.org/")
    assert up.call("open", "gl", "--print").stdout == "https://hub.example.org/\n"


def test_another_image_than_the_usual_one_may_be_named(up):
    done = up.call(*QUICK, "--container", "else/where:2", rc=1)
    assert "image else/where:2 could not be pulled" in done.stderr
    assert "image: String should match" in up.call(*QUICK, "--container", "No/Such", rc=2).stderr


def test_a_private_image_goes_with_its_login_which_nothing_here_shows(up):
    """GPULab's own words name the image as it was submitted."""
    file = up.folder / "token"
    file.write_text("t0ken-of-the-test\n")
    login = {"user": "me", "password_file": str(file)}
    image = "registry.example.org/team/train:1"
    up.write("gl", image=image, registries={"registry.example.org": login})
    file.chmod(0o644)
    assert f"{file} can be read by others" in up.call(*QUICK, rc=3).stderr
    file.chmod(0o600)
    done = up.call(*QUICK, rc=1)
    [job] = up.service.jobs.values()
    assert job.document["request"]["docker"]["image"] == f"me:t0ken-of-the-test@{image}"
    assert f"image me:{'*' * 17}@{image} could not be pulled" in done.stderr
    files = [one for one in up.project.rglob("*") if one.is_file()]
    assert not [one for one in files if b"t0ken-of-the-test" in one.read_bytes()]
    file.write_text("not@in/a/name")
    assert "which an image's name at GPULab cannot have" in up.call(*QUICK, rc=3).stderr
    file.unlink()
    assert "correct backend.registries.registry.example.org" in up.call(*QUICK, rc=3).stderr


@pytest.fixture
def folder(tmp_path):
    """A folder of a user's own."""
    made = tmp_path / "mine"
    made.mkdir()
    return made


def test_a_command_runs_in_a_copy_of_its_folder(up, folder):
    """With the variables that torch.distributed reads, and without ignored files."""
    (folder / "train.sh").write_text(
        'echo "{\\"ranks\\": $WORLD_SIZE}" >metrics.json; ls >seen.txt\n'
        'echo "$MASTER_ADDR" >at.txt\n'
    )
    (folder / ".gpubedignore").write_text("data/\n")
    (folder / "data").mkdir()
    (folder / "data" / "big").write_text("stays")
    result = up.json("run", "gl", "--", "sh", "train.sh", cwd=folder)
    assert (result["status"], result["metrics"]["ranks"], result["job"]) == ("ok", 10, "train")
    here = Path(result["run_dir"])
    assert (here / "at.txt").read_text() == "127.0.0.1\n"
    assert "train.sh" in (here / "seen.txt").read_text().split()
    assert "data" not in (here / "seen.txt").read_text().split()


def test_a_link_travels_as_a_link_and_never_takes_a_file_along(up, folder, tmp_path):
    (tmp_path / "key").write_text("secret")
    (folder / "inside").write_text("here")
    (folder / "link").symlink_to("inside")
    result = up.json("run", "gl", "--", "sh", "-c", "readlink link >seen.txt", cwd=folder)
    assert (Path(result["run_dir"]) / "seen.txt").read_text() == "inside\n"
    for target in ("../key", str(tmp_path / "key")):
        (folder / "data").unlink(missing_ok=True)
        (folder / "data").symlink_to(target)
        assert "does not travel" in up.call("run", "gl", "--", "true", rc=2, cwd=folder).stderr


def test_a_command_that_starts_its_ranks_runs_once(up, folder):
    words = ["sh", "-c", "echo $PET_NNODES x $PET_NPROC_PER_NODE >>seen.txt"]
    result = up.json("run", "gl", "--per-node", "--", *words, cwd=folder)
    assert (Path(result["run_dir"]) / "seen.txt").read_text() == "1 x 10\n"


def test_the_rank_that_failed_first_is_named(up, folder):
    (folder / "train.py").write_text("import os\nprint({}[os.environ['RANK'] + '.csv'])\n")
    up.write("gl", gpus=1)
    result = up.json("run", "gl", "--", "python3", "train.py", cwd=folder, rc=1)
    assert result["cause"]["message"] == "rank 0 on gpulab: KeyError: '0.csv' (train.py:2)"
    assert "GPULab says FAILED, exit code 1" in result["failures"][0]


def test_an_argument_that_the_job_has_not_leaves_nothing_behind(up):
    assert "has no argument 'epoch'" in up.call(*QUICK, "--set", "epoch=1", rc=2).stderr
    assert not (up.project / ".gpubed" / "gl" / "runs").exists()


@pytest.mark.parametrize("launcher", ["ssh", "slurm"])
def test_launchers_that_need_nodes_are_refused(up, launcher):
    assert "gpulab has none" in up.call(*QUICK, "--launcher", launcher, rc=2).stderr


class TestWhoIsWho:
    """Certificates: the user's, the server's, and what each end makes of the other's."""

    def test_an_expired_login_is_told_before_anything_is_sent(self, site):
        site.write("gl", certificate=str(site.authority.user(expired=True)))
        done = site.call("up", "gl", rc=3)
        assert "alice-expired.pem expired on" in done.stderr
        assert site.server.requests == []

    def test_a_login_of_another_authority_is_refused_by_the_server(self, site, tmp_path):
        from support.gpulab.pki import Authority

        foreign = Authority(tmp_path / "foreign", "Another").user()
        site.write("gl", certificate=str(foreign))
        assert "GPULab refuses the certificate" in site.call("resources", "gl", rc=4).stderr

    def test_a_server_that_nobody_vouches_for_gets_nothing(self, site):
        site.write("gl", ca_bundle=None)
        done = site.call("resources", "gl", rc=3)
        assert "is not trusted" in done.stderr
        assert site.server.requests == []

    def test_a_server_whose_certificate_expired_gets_nothing(self, site):
        from support.gpulab.server import Server
        from support.gpulab.service import Service

        with Server(
            Service(site.service.runner, site.folder),
            site.authority,
            site.authority.server(expired=True),
        ) as other:
            site.write("gl", master=other.url)
            assert "expired" in site.call("resources", "gl", rc=3).stderr
            assert other.requests == []

    def test_a_password_comes_from_a_file_and_is_never_asked_for(self, site):
        protected = site.authority.user("bob", password=b"secret")
        site.write("gl", certificate=str(protected))
        assert "has a password" in site.call("resources", "gl", rc=3).stderr
        word = site.folder / "password"
        word.write_text("secret\n")
        word.chmod(0o644)
        site.write("gl", certificate=str(protected), password_file=str(word))
        assert f"chmod 600 {word}" in site.call("resources", "gl", rc=3).stderr
        word.chmod(0o600)
        site.call("resources", "gl")
        word.write_text("wrong\n")
        assert "its password is wrong" in site.call("resources", "gl", rc=3).stderr

    def test_an_account_of_the_former_portal_is_told(self, site):
        urn = "urn:publicid:IDN+wall2.ilabt.iminds.be+user+old"
        site.write("gl", certificate=str(site.authority.user("old", urn=urn)))
        assert "former portal" in site.call("resources", "gl", rc=3).stderr

    def test_a_service_that_is_not_there_is_told(self, site):
        site.write("gl", master="https://localhost:9/api/")
        assert "does not answer" in site.call("resources", "gl", rc=1).stderr
