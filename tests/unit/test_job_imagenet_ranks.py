"""Job imagenet on real ranks of this machine, over its loopback.

They need what nodes have and the controller has not: GPUBED_NODE_PYTHON names the Python of an
environment with the packages of recipe `cpu`, with Horovod or without.
"""

import json
import os
import re
import resource
import signal
import subprocess
import tarfile
from pathlib import Path

import pytest

JOB = Path(__file__).parents[2] / "jobs/imagenet"
PYTHON = os.environ.get("GPUBED_NODE_PYTHON", "")
pytestmark = pytest.mark.skipif(
    not PYTHON, reason="set GPUBED_NODE_PYTHON to a Python that has torch and torchvision"
)
SMALL = ("--model", "resnet18", "--image-size", "32", "--batch-size", "8")
MAKE_IMAGES = """
import sys
from pathlib import Path
from PIL import Image
for colour in ("blue", "green", "red"):
    for number in range(int(sys.argv[2])):
        path = Path(sys.argv[1]) / colour / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 36), colour).save(path)
"""


def environment(storage, **more):
    kept = {"PATH": f"{Path(PYTHON).parent}:/usr/bin:/bin", "HOME": str(storage)}
    given = {"GPUBED_SHARED": storage, "GPUBED_DATASETS": storage, "HOROVOD_GLOO_IFACE": "lo"}
    one = {"OMP_NUM_THREADS": 1, "PYTHONDONTWRITEBYTECODE": 1}
    return kept | {name: str(value) for name, value in {**given, **one, **more}.items()}


def start(storage, out, arguments, rank=0, ranks=1, before=None):
    """Start one rank as a launcher does."""
    out.mkdir(exist_ok=True)
    place = {"HOROVOD_RANK": rank, "HOROVOD_SIZE": ranks, "HOROVOD_LOCAL_RANK": rank}
    return subprocess.Popen(
        [PYTHON, JOB / "main.py", "--out", out, *arguments],
        env=environment(storage, **place),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=before,
    )


def run(storage, name, *arguments, ranks=2, before=None):
    """Run the job with torch's own averaging; its metrics, and what rank 0 said."""
    out = storage / name
    arguments = ("--framework", "ddp", *SMALL, *map(str, arguments))
    started = [start(storage, out, arguments, rank, ranks, before) for rank in range(ranks)]
    said = [process.communicate(timeout=600) for process in started]
    assert [process.returncode for process in started] == [0] * ranks, said
    return json.loads((out / "metrics.json").read_text()), said[0][0]


def is_whole(metrics):
    parts = sum(metrics[name] for name in ("data_s", "compute_s", "exposed_communication_s"))
    return parts == pytest.approx(metrics["step_s"], rel=0.03)


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    """A shared storage, with a dataset of 24 images to train on and 7 of each colour held out."""
    folder = tmp_path_factory.mktemp("storage")
    for name, count in (("colours/train", 8), ("colours/val", 7)):
        subprocess.run([PYTHON, "-c", MAKE_IMAGES, folder / name, str(count)], check=True)
    return folder


@pytest.fixture(scope="module")
def on_two(storage):
    return run(storage, "two", "--steps", 8, "--warmup-steps", 2)[0]


def test_the_parts_of_a_step_are_the_step_on_two_ranks(on_two):
    assert is_whole(on_two)
    assert all(is_whole(rank) for rank in on_two["ranks"])
    assert on_two["exposed_communication_s"] > 0
    assert (on_two["world_size"], on_two["steps"], on_two["timed_steps"]) == (2, 8, 6)
    assert on_two["images_per_s"] == pytest.approx(16 / on_two["step_s"], rel=0.05)
    assert on_two["busbw_bps"] is None
    assert [rank["rank"] for rank in on_two["ranks"]] == [0, 1]


def test_the_parts_of_a_step_are_the_step_on_one_rank(storage):
    alone, said = run(storage, "one", "--steps", 6, "--warmup-steps", 2, ranks=1)
    assert is_whole(alone)
    parts = "data .* ms, compute .* ms, exposed communication 0.0 ms"
    assert re.search(rf"^progress: 6/6 steps, \d+ images/s, {parts}$", said, re.MULTILINE), said
    assert (alone["exposed_communication_s"], alone["sent_bytes_per_step"]) == (0, 0)


def test_a_model_is_as_large_as_published(on_two):
    """11,689,512 weights: torchvision's own table of models."""
    assert on_two["parameters"] == 11_689_512
    assert on_two["sent_bytes_per_step"] == on_two["gradient_bytes"] == 4 * on_two["parameters"]


def test_averaged_at_once_the_whole_communication_shows_and_the_losses_are_the_same(
    storage, on_two
):
    at_once, _ = run(storage, "once", "--steps", 8, "--warmup-steps", 2, "--overlap", "false")
    assert is_whole(at_once)
    seconds = at_once["exposed_communication_s"]
    assert at_once["busbw_bps"] == pytest.approx(8 * at_once["gradient_bytes"] / seconds)
    assert at_once["loss"] == pytest.approx(on_two["loss"], rel=1e-3)


def test_sharded_ranks_learn_the_same(storage, on_two):
    sharded, _ = run(storage, "sharded", "--steps", 8, "--warmup-steps", 2, "--framework", "fsdp")
    assert is_whole(sharded)
    assert sharded["loss"] == pytest.approx(on_two["loss"], rel=1e-3)
    assert sharded["sent_bytes_per_step"] == (4 + 4 + 4) / 2 * sharded["parameters"]


def test_horovods_ranks_learn_the_same(storage, on_two):
    if not (horovodrun := Path(PYTHON).with_name("horovodrun")).exists():
        pytest.skip("GPUBED_NODE_PYTHON has no Horovod")
    out = storage / "horovod"
    out.mkdir()
    command = [horovodrun, "--gloo", "--network-interfaces", "lo", "-np", "2", "-H", "localhost:2"]
    options = ("--steps", "8", "--warmup-steps", "2", "--fusion-mb", "16", "--cycle-ms", "2")
    done = subprocess.run(
        [*command, PYTHON, JOB / "main.py", "--out", out, *SMALL, *options],
        env=environment(storage, GPUBED_ADDRESS="127.0.0.1", HOROVOD_CPU_OPERATIONS="gloo"),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((out / "metrics.json").read_text())
    assert is_whole(found)
    assert found["framework"] == "horovod"
    assert found["loss"] == pytest.approx(on_two["loss"], rel=1e-3)


def test_a_run_that_goes_on_learns_what_an_unbroken_one_does(storage):
    """Also where the last checkpoint is damaged: the one before is taken, and told."""
    wanted = ("--dataset", "colours", "--steps", 6, "--warmup-steps", 1, "--learning-rate", 0.02)
    kept = ("--checkpoint", "broken-off", "--checkpoint-steps", 2)
    whole, _ = run(storage, "whole", *wanted, *kept)
    assert whole["checkpoint_failures"] == 0
    *_, middle, last = sorted((storage / "checkpoints/broken-off").glob("*.pt"))
    last.write_bytes(last.read_bytes()[:1000])
    again, said = run(storage, "again", *wanted, *kept)
    assert f"checkpoint {last} is damaged" in said
    assert f"going on from checkpoint {middle}" in said
    assert (whole["resumed_at"], again["resumed_at"]) == (0, 4)
    # Of the last step: so many are a quarter of either run.
    assert again["loss"] == pytest.approx(whole["loss"], rel=1e-3)
    assert again["val_accuracy"] == whole["val_accuracy"]


def test_another_framework_on_another_number_of_ranks_goes_on(storage):
    options = ("--steps", 4, "--warmup-steps", 1, "--checkpoint", "moved")
    run(storage, "before", *options, "--framework", "fsdp")
    # Of two ranks, as it began: ten of one.
    wanted = (*options[2:], "--steps", 5)
    moved, _ = run(storage, "after", *wanted, ranks=1)
    assert (moved["resumed_at"], moved["steps"]) == (8, 2)
    # As one that was killed before it told its figures.
    again, said = run(storage, "told", *wanted, ranks=1)
    assert (again["resumed_at"], again["steps"], again["timed_steps"]) == (9, 1, 1)
    assert "the checkpoint has 10 steps, and 10 are asked for" in said


def test_a_run_that_goes_on_does_so_by_its_own_settings(storage):
    """In another precision, too, whose losses nobody has scaled before."""
    options = ("--warmup-steps", 1, "--checkpoint", "other-settings")
    run(storage, "settings", *options, "--steps", 2, ranks=1)
    wanted = ("--precision", "fp16", "--weight-decay", 0, "--momentum", 0.5)
    again, _ = run(storage, "other-settings", *options, "--steps", 4, *wanted, ranks=1)
    assert again["resumed_at"] == 2
    last = max((storage / "checkpoints/other-settings").glob("*.pt"))
    show = (
        "import json, sys, torch; [group] = torch.load(sys.argv[1])['optimizer']['param_groups'];"
        "print(json.dumps([group['momentum'], group['weight_decay']]))"
    )
    done = subprocess.run([PYTHON, "-c", show, last], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [0.5, 0]


def test_held_out_images_count_once(storage):
    found, _ = run(storage, "held-out", "--dataset", "colours", "--epochs", 1, ranks=3)
    assert round(found["val_accuracy"] * 21, 6).is_integer()
    assert found["loss_fall"] is None


@pytest.mark.parametrize("asked", [0, 1])
def test_who_is_asked_to_end_keeps_what_it_has_on_all_ranks_first(storage, asked):
    """Whichever rank hears of it first: the others end after the same step."""
    name, out = f"asked-{asked}", storage / f"asked-{asked}"
    arguments = ("--framework", "ddp", *SMALL, "--steps", "100000", "--checkpoint", name)
    ranks = [start(storage, out, arguments, rank, 2) for rank in range(2)]
    for line in ranks[0].stdout:
        if line.startswith("progress:"):
            break
    ranks[asked].terminate()
    said = [rank.communicate(timeout=60) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [1, 1], said
    steps = {int(re.search(r"asked to end; step (\d+) is kept", error)[1]) for _, error in said}
    assert len(steps) == 1
    [step] = steps
    wanted = ("--steps", step + 2, "--warmup-steps", 1, "--checkpoint", name)
    again, _ = run(storage, f"{name}-again", *wanted)
    assert again["resumed_at"] == step


def test_who_is_asked_to_end_and_waits_for_a_rank_that_is_stuck_does_so_soon(storage):
    out = storage / "stuck"
    arguments = ("--framework", "ddp", *SMALL, "--steps", "100000", "--checkpoint", "stuck")
    ranks = [start(storage, out, arguments, rank, 2) for rank in range(2)]
    for line in ranks[0].stdout:
        if line.startswith("progress:"):
            break
    ranks[1].send_signal(signal.SIGSTOP)
    ranks[0].terminate()
    _, said = ranks[0].communicate(timeout=60)
    ranks[1].kill()
    ranks[1].communicate()
    assert ranks[0].returncode == 128 + signal.SIGTERM
    assert "the other ranks do not answer" in said


def test_without_checkpoints_who_is_asked_to_end_does_so_at_once(storage):
    alone = start(storage, storage / "at-once", (*SMALL, "--framework", "ddp", "--steps", "100000"))
    for line in alone.stdout:
        if line.startswith("progress:"):
            break
    alone.terminate()
    alone.communicate(timeout=60)
    assert alone.returncode == -signal.SIGTERM


def test_a_disk_that_takes_no_more_is_told_and_the_training_goes_on(storage):
    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000_000, 20_000_000))

    options = ("--steps", 4, "--warmup-steps", 1, "--checkpoint", "full")
    found, said = run(storage, "full", *options, ranks=1, before=small_files)
    assert "could not be written: [Errno 27] File too large; there is none before it" in said
    assert found["checkpoint_failures"] == 1
    assert list((storage / "checkpoints/full").iterdir()) == []


def test_a_broken_shard_ends_all_ranks_by_name(storage):
    """Rank 1 has nothing to read any more; a launcher would end rank 0, which loses it here."""
    folder = storage / "torn"
    folder.mkdir()
    description = {"images": 64, "classes": ["a"], "shards": ["0.tar", "1.tar"]}
    (folder / "dataset.json").write_text(json.dumps(description))
    picture = storage / "colours/train/red/0.png"
    for name in description["shards"]:
        (folder / "label").write_text("0")
        with tarfile.open(folder / name, "w") as shard:
            for number in range(32):
                shard.add(picture, f"{number}.jpg")
                shard.add(folder / "label", f"{number}.cls")
    whole = (folder / "1.tar").read_bytes()
    (folder / "1.tar").write_bytes(whole[: len(whole) // 2])
    arguments = ("--framework", "ddp", *SMALL, "--dataset", "torn")
    ranks = [start(storage, storage / "torn-run", arguments, rank, 2) for rank in range(2)]
    said = [process.communicate(timeout=600)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [1, 1]
    assert any(f"shard {folder}/1.tar is broken" in text for text in said)
    assert any("another rank has ended, so this one does" in text for text in said)
    assert not any("Traceback" in text for text in said)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--model", "resnet51"], "torchvision has no model 'resnet51'; near it are resnet50"),
        (["--model", "alexnet", "--image-size", "32"], "alexnet cannot take images of 32 x 32"),
    ],
)
def test_a_model_that_cannot_be_is_one_sentence(storage, arguments, sentence):
    process = start(storage, storage / "refused", arguments)
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 2
    assert said.startswith(sentence)
    assert said.count("\n") == 1


@pytest.mark.parametrize("model", ["squeezenet1_1", "vgg11"])
def test_a_model_that_is_shared_out_by_blocks_learns_as_a_whole_one(storage, model):
    """Lists of layers, and one that has most of the weights: each is gathered by itself."""
    options = ("--model", model, "--image-size", 64, "--batch-size", 2, "--steps", 3)
    options += ("--warmup-steps", 1)
    whole, _ = run(storage, f"whole-{model}", *options)
    shared, _ = run(storage, f"shared-{model}", *options, "--framework", "fsdp")
    assert shared["loss"] == pytest.approx(whole["loss"], rel=1e-3)
    assert shared["parameters"] == whole["parameters"]
