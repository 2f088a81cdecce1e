"""A researcher's own scripts, as docs/tutorial/your-own-training.md starts them."""

import json
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from support.own_work import WAYS, Researcher

pytestmark = [pytest.mark.e2e, pytest.mark.docker]
LONG = pytest.mark.long


@pytest.fixture
def own(cluster, tmp_path):
    return Researcher(cluster, tmp_path / "mine")


def test_a_script_of_horovod_runs_as_it_is(own, cluster):
    (own.folder / "data").mkdir()
    (own.folder / "data" / "large").write_bytes(bytes(1000))
    (own.folder / ".gpubedignore").write_text("data\n")
    (own.folder / "latest").symlink_to("hvd.py")
    (own.folder / "metrics.json").write_text('{"of_an_earlier_run": 1}')
    done = own("run", cluster.name, "--json", "--", "python", "hvd.py", "--value=2")
    told = json.loads(done.stdout)
    assert (told["status"], told["job"], told["world_size"]) == ("ok", "hvd", 3)
    assert "of_an_earlier_run" not in told["metrics"]
    results = Path(told["run_dir"])
    assert [(results / f"rank-{rank}.txt").read_text() for rank in range(3)] == ["6", "6", "6"]
    assert not (results / "data").exists()
    shown = json.loads(own("runs", cluster.name, "show", told["run_id"], "--json").stdout)
    assert shown["command"] == ["python", "hvd.py", "--value=2"]
    again = json.loads(own("run", cluster.name, "--again", told["run_id"], "--json").stdout)
    assert again["status"] == "ok"


@pytest.mark.parametrize(
    "command",
    [["python", "ddp.py"], ["torchrun", "ddp.py"], ["--per-node", "--", "torchrun", "ddp.py"]],
    ids=["ranks", "torchrun", "per node"],
)
def test_a_script_of_torch_distributed_runs_as_it_is(own, cluster, command):
    mark = [] if "--" in command else ["--"]
    done = own("run", cluster.name, *mark, *command)
    said = done.stdout + done.stderr
    for rank in range(3):
        assert f"ddp: rank {rank} of 3, local 0, same weights: True" in said


@pytest.mark.long
@pytest.mark.parametrize(
    ("framework", "command"),
    [
        ("fsdp", ["python"]),
        ("lightning", ["python"]),
        ("accelerate", ["accelerate", "launch"]),
        ("accelerate", ["python"]),
        ("transformers", ["python"]),
        ("ignite", ["python"]),
    ],
)
def test_a_framework_finds_all_ranks(cluster, tmp_path, framework, command):
    own = Researcher(cluster, tmp_path / "mine", framework)
    done = own("run", cluster.name, "--", *command, "train.py")
    for rank in range(3):
        assert f"{framework}: rank {rank} of 3" in done.stdout + done.stderr


def test_a_command_that_fails_is_a_run_that_failed(own, cluster):
    done = own("run", cluster.name, "--", "python", "fails.py", rc=1)
    assert "error: rank 1 on node-1: KeyError: 'labels.csv' (fails.py:" in done.stderr


@pytest.mark.parametrize(
    "way",
    [
        way if way in ("full", "kill", "memory", "module") else pytest.param(way, marks=LONG)
        for way in WAYS
    ],
)
def test_a_run_that_fails_names_its_cause(own, way):
    own.fails(way)


def test_a_run_that_stands_still_ends_when_it_was_asked_to(own, cluster):
    words = ("run", cluster.name, "--stall-after", "20s", "--json", "--", "python", "stall.py")
    cause = json.loads(own(*words, rc=1).stdout)["cause"]
    assert cause["kind"] == "stall"
    assert cause["message"].startswith("rank 1 on node-1 did not come to allreduce.grad")
    assert cause["message"].endswith("; it was at stall.py:12, in <module>")


def test_a_command_goes_on_from_its_checkpoint(own, cluster):
    done = own("run", cluster.name, "--elastic", "--json", "--", "python", "resumes.py")
    told = json.loads(done.stdout)
    assert (told["status"], len(told["legs"])) == ("ok", 2)
    said = own("logs", cluster.name, "last").stdout
    assert "went from step 3 to the end" in said
    asked = ("run", cluster.name, "--set", "checkpoint=mine", "--", "python", "resumes.py")
    assert "fails at step 3" in own(*asked, rc=1).stderr
    assert "went from step 3" in own("run", cluster.name, "--resume", "last").stderr


def test_a_bar_leaves_its_last_state(own, cluster):
    told = json.loads(own("run", cluster.name, "--json", "--", "python", "bar.py").stdout)
    log = (Path(told["run_dir"]) / "output.log").read_text()
    bars = [line for line in log.splitlines() if "/200" in line]
    assert sorted(bars) == [f"[{rank}]<stderr>: 200/200 of rank {rank}" for rank in range(3)]
    said = own("logs", cluster.name, "last", "--rank", "1").stdout
    assert said.splitlines() == [" 200/200 of rank 1"]


def test_the_curve_of_a_run_is_shown_while_it_runs(own, cluster):
    run = json.loads(
        own("run", cluster.name, "--detach", "--json", "--", "python", "curve.py").stdout
    )
    deadline, points = time.monotonic() + 60, []
    while len(points) < 3 and time.monotonic() < deadline:
        shown = json.loads(own("runs", cluster.name, "show", run["run_id"], "--json").stdout)
        points = shown["curves"].get("loss", [])
    assert shown["status"] == "running"
    assert points[1] == [1, 0.5]
    own("cancel", cluster.name, run["run_id"])


def test_the_packages_of_a_folder_are_seen_by_all_ranks(own, cluster):
    listed = own.folder / "requirements.txt"
    listed.write_text("einops\ntorch\n")
    run = ["run", cluster.name, "--json", "--"]
    there = ["python", "-c", "import einops, torch; print('einops of', einops.__version__)"]
    told = json.loads(own(*run, *there).stdout)
    results = Path(told["run_dir"])
    assert (results / "output.log").read_text().count("einops of") == 3
    lock = (results / "origin" / "packages.txt").read_text()
    assert "einops==" in lock
    assert "--hash=sha256:" in lock
    assert "torch" not in lock

    again = json.loads(own("run", cluster.name, "--again", told["run_id"], "--json").stdout)
    assert (Path(again["run_dir"]) / "origin" / "packages.txt").read_text() == lock

    listed.write_text("einops\ntorch==1.0\n")
    said = own("run", cluster.name, "--", *there, rc=1).stderr
    assert "you require torch==1.0" in said
    assert "keep theirs" in said
    listed.write_text("einops===\n")
    said = own("run", cluster.name, "--", *there, rc=1).stderr
    assert "requirements.txt" in said
    assert "expected version" in said
    listed.write_text("einops\ntorch\n")
    assert json.loads(own(*run, *there).stdout)["status"] == "ok"


def test_a_project_with_a_build_system_is_the_runs_own_folder(own, cluster):
    (own.folder / "requirements.txt").write_text("-e .\n")
    (own.folder / "pyproject.toml").write_text(
        '[project]\nname = "mine"\nversion = "1"\n[project.scripts]\nmine = "mine:main"\n'
        '[tool.setuptools]\npy-modules = ["mine"]\n'
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
    )
    (own.folder / "mine.py").write_text("def main():\n    print('mine is', __file__)\n")
    told = json.loads(own("run", cluster.name, "--json", "--", "mine").stdout)
    log = (Path(told["run_dir"]) / "output.log").read_text()
    assert log.count(f"/runs/{told['run_id']}/mine.py") == 3


def test_what_cannot_be_asked_is_refused(own, cluster):
    said = own("run", cluster.name, "--set", "a=1", "--", "python", "hvd.py", rc=2).stderr
    assert "--set is for jobs" in said
    (own.folder / "run.json").write_text("")
    said = own("run", cluster.name, "--", "python", "hvd.py", rc=2).stderr
    assert "run.json" in said


def test_a_dataset_that_was_put_is_found_by_every_rank_and_comes_back(own, cluster):
    data = own.folder / "flowers in\nbloom"
    (data / "a").mkdir(parents=True)
    (data / "a" / "-1 ü").write_text("one")
    (data / "latest").symlink_to("a")
    [put] = json.loads(own("put", cluster.name, str(data), "--as", "flowers", "--json").stdout)[
        "copied"
    ]
    assert (put["files"], put["bytes"]) == (1, 3)
    (own.folder / ".gpubedignore").write_text("flowers*\n")
    script = 'test "$(cat "$GPUBED_DATASETS/flowers/latest/-1 ü")" = one'
    own("run", cluster.name, "--", "sh", "-c", script)
    (data / "a" / "-1 ü").write_text("three")
    said = own("put", cluster.name, str(data), "--as", "flowers", rc=2).stderr
    assert "Replace 1 file(s)" in said
    own("put", cluster.name, str(data), "--as", "flowers", "-y")
    own("get", cluster.name, "datasets/flowers", "--to", "back")
    assert (own.folder / "back" / "flowers" / "latest" / "-1 ü").read_text() == "three"


def test_figures_by_step_need_no_metrics_json(own, cluster):
    line = 'import json; [print(json.dumps({"step": s, "loss": 1 / (s + 1)})) for s in range(9)]'
    script = f"test $RANK != 0 || python -c '{line}' > metrics.jsonl"
    told = json.loads(own("run", cluster.name, "--json", "--", "sh", "-c", script).stdout)
    assert told["metrics"] == {"loss": pytest.approx(1 / 9)}
    said = own("runs", cluster.name, "show", told["run_id"]).stdout
    assert "loss  █▄▂▂▁▁▁▁▁  1 to 0.1111, least 0.1111" in said
    page = json.loads(own("report", cluster.name, told["run_id"], "--json").stdout)["files"][0]
    assert "loss" in Path(page).read_text()


def test_tensorboard_opens_over_ssh_with_the_curves_of_runs(own, cluster):
    script = (
        "from torch.utils.tensorboard import SummaryWriter as W; w = W('.'); w.add_scalar('a', 2); "
        "w.close()"
    )
    command = ["sh", "-c", f'test $RANK != 0 || python -c "{script}"']
    told = json.loads(own("run", cluster.name, "--json", "--", *command).stdout)

    def running(pattern):
        return cluster.node("node-0", f"pgrep -f '{pattern}' || true").strip() != ""

    words = ("open", cluster.name, "--tensorboard", "--print")
    with cluster.start(*words, stdout=subprocess.PIPE) as process:
        try:
            url = process.stdout.readline().strip()
            with urllib.request.urlopen(f"{url}data/runs") as answer:
                runs = json.load(answer)
            assert running("board.launc[h]")
            assert not running("tensorboard_data_serve[r]"), "it would have a port without the path"
            with pytest.raises(urllib.error.HTTPError):
                urllib.request.urlopen(re.sub(r"(:\d+/).*", r"\1data/runs", url))
        finally:
            process.send_signal(signal.SIGINT)
    assert told["run_id"] in runs
    until = time.monotonic() + 20
    while running("board.launc[h]"):
        assert time.monotonic() < until
