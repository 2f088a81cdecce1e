"""Job imagenet on real ranks of this machine, over its loopback.

They need what nodes have and the controller has not: GPUBED_NODE_PYTHON names the Python of an
environment with the packages of recipe `cpu`, with Horovod or without.
"""

import json
import os
import re
import resource
import subprocess
import tarfile

import pytest

from support.job_ranks import SMALL, Ranks, is_whole

PYTHON = os.environ.get("GPUBED_NODE_PYTHON", "")
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        not PYTHON, reason="set GPUBED_NODE_PYTHON to a Python that has torch and torchvision"
    ),
]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """A shared storage, with a dataset of 24 images to train on and 7 of each colour held out."""
    found = Ranks(PYTHON, tmp_path_factory.mktemp("storage"))
    found.make_images("colours/train", 8)
    found.make_images("colours/val", 7)
    return found


@pytest.fixture(scope="module")
def on_two(ranks):
    return ranks.run("two", "--steps", 8, "--warmup-steps", 2)[0]


def test_the_parts_of_a_step_are_the_step_on_two_ranks(on_two):
    assert is_whole(on_two)
    assert all(is_whole(rank) for rank in on_two["ranks"])
    assert on_two["exposed_communication_s"] > 0
    assert (on_two["world_size"], on_two["steps"], on_two["timed_steps"]) == (2, 8, 6)
    assert on_two["images_per_s"] == pytest.approx(16 / on_two["step_s"], rel=0.05)
    assert on_two["busbw_bps"] is None
    assert [rank["rank"] for rank in on_two["ranks"]] == [0, 1]


def test_a_model_is_as_large_as_published(on_two):
    """11,689,512 weights: torchvision's own table of models."""
    assert on_two["parameters"] == 11_689_512
    assert on_two["sent_bytes_per_step"] == on_two["gradient_bytes"] == 4 * on_two["parameters"]


def test_averaged_at_once_the_whole_communication_shows_and_the_losses_are_the_same(ranks, on_two):
    at_once, _ = ranks.run("once", "--steps", 8, "--warmup-steps", 2, "--overlap", "false")
    assert is_whole(at_once)
    seconds = at_once["exposed_communication_s"]
    assert at_once["busbw_bps"] == pytest.approx(8 * at_once["gradient_bytes"] / seconds)
    assert at_once["loss"] == pytest.approx(on_two["loss"], rel=1e-3)


def test_sharded_ranks_learn_the_same(ranks, on_two):
    sharded, _ = ranks.run("sharded", "--steps", 8, "--warmup-steps", 2, "--framework", "fsdp")
    assert is_whole(sharded)
    assert sharded["loss"] == pytest.approx(on_two["loss"], rel=1e-3)
    assert sharded["sent_bytes_per_step"] == (4 + 4 + 4) / 2 * sharded["parameters"]


PIPELINE = ("--framework", "pipeline", "--microbatches", 2)


def test_a_pipeline_learns_what_one_rank_does_with_as_many_passes(ranks):
    """And where it stops, data-parallel ranks go on."""
    options = ("--dataset", "colours", "--warmup-steps", 2, "--learning-rate", 0.02)
    kept = ("--checkpoint", "pipeline")
    piped, _ = ranks.run("piped", *options, "--steps", 6, *PIPELINE, *kept)
    halves = ("--batch-size", 4, "--backward-passes-per-step", 2)
    alone, _ = ranks.run("halves", *options, "--steps", 6, *halves, ranks=1)
    assert piped["loss"] == pytest.approx(alone["loss"], rel=1e-4)
    assert piped["loss_first"] == pytest.approx(alone["loss_first"], rel=1e-4)
    assert is_whole(piped)
    assert piped["parameters"] == alone["parameters"]
    assert (piped["world_size"], piped["gradient_bytes"]) == (2, 0)
    assert piped["images_per_s"] == pytest.approx(8 / piped["step_s"], rel=0.05)
    assert piped["exposed_communication_s"] > 0
    again, _ = ranks.run("piped-on", *options, "--steps", 8, *kept)
    assert again["resumed_at"] == 3  # as steps of two ranks
    assert again["loss"] == pytest.approx(alone["loss"], rel=0.5)


def test_a_pipeline_of_another_layout_and_precision_learns(ranks):
    options = ("--steps", 8, "--warmup-steps", 2, *PIPELINE)
    exact, _ = ranks.run("piped-exact", *options)
    found, _ = ranks.run("piped-bf16", *options, "--precision", "bf16", "--channels-last", "true")
    assert found["loss_first"] == pytest.approx(exact["loss_first"], rel=0.05)
    assert found["sent_bytes_per_step"] == exact["sent_bytes_per_step"] / 2


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("googlenet", "framework=pipeline is for models with one output"),
        ("squeezenet1_1", ""),
    ],
)
def test_a_pipeline_divides_most_models(ranks, model, sentence):
    arguments = ("--model", model, "--image-size", "64", "--batch-size", "4", "--steps", "2")
    given = (*arguments, "--warmup-steps", "1", *map(str, PIPELINE))
    both = [ranks.start(f"piped-{model}", given, rank, 2) for rank in range(2)]
    said = [process.communicate(timeout=600)[1] for process in both]
    assert [process.returncode for process in both] == [bool(sentence)] * 2, said
    assert all(text.startswith(sentence) for text in said)


def test_horovods_ranks_learn_the_same(ranks, on_two):
    if subprocess.run([PYTHON, "-c", "import horovod"], check=False).returncode:
        pytest.skip("GPUBED_NODE_PYTHON has no Horovod")
    options = ("--steps", 8, "--warmup-steps", 2, "--fusion-mb", 16, "--cycle-ms", 2)
    done = ranks.launched("horovod", *SMALL, *options)
    assert done.returncode == 0, done.stderr
    found = ranks.metrics("horovod")
    assert is_whole(found)
    assert found["framework"] == "horovod"
    assert found["loss"] == pytest.approx(on_two["loss"], rel=1e-3)


EMULATED = ("--emulate", "v100", "--emulated-rate", 20, "--steps", 6, "--warmup-steps", 2)


@pytest.mark.parametrize("framework", ["ddp", "horovod"])
def test_emulated_compute_takes_as_long_as_it_should_and_tells_emulated_time(ranks, framework):
    """A batch of 8 at 20 images/s is 0.4 s, in twice as many real ones."""
    if framework == "horovod":
        if subprocess.run([PYTHON, "-c", "import horovod"], check=False).returncode:
            pytest.skip("GPUBED_NODE_PYTHON has no Horovod")
        done = ranks.launched("emulated", *SMALL, *EMULATED, "--time-factor", 2)
        assert done.returncode == 0, done.stderr
        found = ranks.metrics("emulated")
    else:
        found, said = ranks.run("emulated-ddp", *EMULATED, "--time-factor", 2)
        assert "emulated compute of v100" in said
    assert is_whole(found)
    assert found["compute_s"] == pytest.approx(0.4, rel=0.1)
    assert (found["emulated"], found["time_factor"]) == ("v100", 2)
    assert found["device"] == "emulated compute of v100"
    assert found["gradient_bytes"] == 4 * 11_689_512
    assert found["fused_mb"] == (128 if framework == "horovod" else 25)
    assert found["address"] == "127.0.0.1"


def test_a_slow_node_computes_longer_in_emulated_compute_alone(ranks):
    slow = ("--slow-node", "node-1:1.5")
    started = [
        ranks.start(
            "slow", (*SMALL, *map(str, EMULATED), *slow), rank, 2, GPUBED_NODE=f"node-{rank}"
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=600) for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    found = ranks.metrics("slow")
    assert found["straggler_ratio"] == pytest.approx(1.5, rel=0.1)
    assert found["slowest_rank"] == "rank 1 on node-1"
    _, refused = ranks.start("refused", ["--slow-node", "node-1:2"]).communicate()
    assert "time_factor and slow_node are for emulated compute" in refused


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--model", "resnot50"], "no sizes of 'resnot50' are known to emulate; near it are"),
        (["--framework", "fsdp"], "emulate and framework=fsdp exclude each other"),
        (["--dataset", "colours"], "emulate and dataset exclude each other"),
    ],
)
def test_what_cannot_be_emulated_is_refused(ranks, words, why):
    given = ["--emulate", "v100", "--emulated-rate", "20", *words]
    _, said = ranks.start("refused", given).communicate()
    assert why in said


def test_a_run_that_goes_on_learns_what_an_unbroken_one_does(ranks):
    """Also where the last checkpoint is damaged: the one before is taken, and told."""
    wanted = ("--dataset", "colours", "--steps", 6, "--warmup-steps", 1, "--learning-rate", 0.02)
    kept = ("--checkpoint", "broken-off", "--checkpoint-steps", 2)
    whole, _ = ranks.run("whole", *wanted, *kept)
    assert whole["checkpoint_failures"] == 0
    *_, middle, last = sorted((ranks.storage / "checkpoints/broken-off").glob("*.pt"))
    last.write_bytes(last.read_bytes()[:1000])
    again, said = ranks.run("again", *wanted, *kept)
    assert f"checkpoint {last} is damaged" in said
    assert f"going on from checkpoint {middle}" in said
    assert (whole["resumed_at"], again["resumed_at"]) == (0, 4)
    # Of the last step: so many are a quarter of either run.
    assert again["loss"] == pytest.approx(whole["loss"], rel=1e-3)
    assert again["val_accuracy"] == whole["val_accuracy"]


def test_a_run_that_goes_on_does_so_by_its_own_settings(ranks):
    """In another precision, too, whose losses nobody has scaled before."""
    options = ("--warmup-steps", 1, "--checkpoint", "other-settings")
    ranks.run("settings", *options, "--steps", 2, ranks=1)
    wanted = ("--precision", "fp16", "--weight-decay", 0, "--momentum", 0.5)
    again, _ = ranks.run("other-settings", *options, "--steps", 4, *wanted, ranks=1)
    assert again["resumed_at"] == 2
    last = max((ranks.storage / "checkpoints/other-settings").glob("*.pt"))
    show = (
        "import json, sys, torch; [group] = torch.load(sys.argv[1])['optimizer']['param_groups'];"
        "print(json.dumps([group['momentum'], group['weight_decay']]))"
    )
    done = subprocess.run([PYTHON, "-c", show, last], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [0.5, 0]


def test_held_out_images_count_once(ranks):
    found, _ = ranks.run("held-out", "--dataset", "colours", "--epochs", 1, ranks=3)
    assert round(found["val_accuracy"] * 21, 6).is_integer()
    assert found["loss_fall"] is None


@pytest.mark.parametrize("asked", [0, 1])
def test_who_is_asked_to_end_keeps_what_it_has_on_all_ranks_first(ranks, asked):
    """Whichever rank hears of it first: the others end after the same step."""
    name = f"asked-{asked}"
    arguments = (*SMALL, "--steps", "100000", "--checkpoint", name)
    both = [ranks.start(name, arguments, rank, 2) for rank in range(2)]
    for line in both[0].stdout:
        if line.startswith("progress:"):
            break
    both[asked].terminate()
    said = [rank.communicate(timeout=60) for rank in both]
    assert [rank.returncode for rank in both] == [1, 1], said
    steps = {int(re.search(r"asked to end; step (\d+) is kept", error)[1]) for _, error in said}
    assert len(steps) == 1
    [step] = steps
    wanted = ("--steps", step + 2, "--warmup-steps", 1, "--checkpoint", name)
    again, _ = ranks.run(f"{name}-again", *wanted)
    assert again["resumed_at"] == step


def test_a_disk_that_takes_no_more_is_told_and_the_training_goes_on(ranks):
    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000_000, 20_000_000))

    options = ("--steps", 4, "--warmup-steps", 1, "--checkpoint", "full")
    found, said = ranks.run("full", *options, ranks=1, before=small_files)
    assert "could not be written: [Errno 27] File too large; there is none before it" in said
    assert found["checkpoint_failures"] == 1
    assert list((ranks.storage / "checkpoints/full").iterdir()) == []


def test_a_broken_shard_ends_all_ranks_by_name(ranks):
    """Rank 1 has nothing to read any more; a launcher would end rank 0, which loses it here."""
    folder = ranks.storage / "torn"
    folder.mkdir()
    description = {"images": 64, "classes": ["a"], "shards": ["0.tar", "1.tar"]}
    (folder / "dataset.json").write_text(json.dumps(description))
    picture = ranks.storage / "colours/train/red/0.png"
    for name in description["shards"]:
        (folder / "label").write_text("0")
        with tarfile.open(folder / name, "w") as shard:
            for number in range(32):
                shard.add(picture, f"{number}.jpg")
                shard.add(folder / "label", f"{number}.cls")
    whole = (folder / "1.tar").read_bytes()
    (folder / "1.tar").write_bytes(whole[: len(whole) // 2])
    arguments = (*SMALL, "--dataset", "torn")
    both = [ranks.start("torn-run", arguments, rank, 2) for rank in range(2)]
    said = [process.communicate(timeout=600)[1] for process in both]
    assert [process.returncode for process in both] == [1, 1]
    assert any(f"shard {folder}/1.tar is broken" in text for text in said)
    assert any("another rank has ended, so this one does" in text for text in said)
    assert not any("Traceback" in text for text in said)


@pytest.mark.parametrize("broken", [False, True])
def test_ranks_that_do_not_read_the_same_all_end_by_name(ranks, broken):
    """Also where one of them cannot read it at all, and the other would wait for it."""
    there = ranks.storage / f"other-{broken}/datasets/colours"
    ranks.make_images(there / "train", 7)
    ranks.make_images(there / "val", 7)
    (there / ".staged").touch()
    if broken:
        (there / "train/dataset.json").write_text("{")
    arguments = (*SMALL, "--dataset", "colours")
    scratch = {"GPUBED_SCRATCH": there.parents[1]}
    both = [
        ranks.start(f"apart-{broken}", arguments, 0, 2),
        ranks.start(f"apart-{broken}", arguments, 1, 2, **scratch),
    ]
    said = [process.communicate(timeout=600)[1] for process in both]
    assert [process.returncode for process in both] == [1, 1], said
    words = "cannot be read as a dataset" if broken else "21 images of 3 classes"
    assert any(f"{there}/train" in text and words in text for text in said), said
    assert not any("Traceback" in text for text in said)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--model", "resnet51"], "torchvision has no model 'resnet51'; near it are resnet50"),
        (["--model", "alexnet", "--image-size", "32"], "image_size=32 is not for alexnet: "),
        (["--model", "regnet_y_400mf", "--image-size", "32", "--batch-size", "1"], "batch_size=1 "),
        (
            ["--model", "resnet18", "--image-size", "32", "--batch-size", "1"],
            "batch_size=1 is not for resnet18 with image_size=32: Expected more than 1 value",
        ),
    ],
)
def test_a_model_that_cannot_be_is_one_sentence(ranks, arguments, sentence):
    process = ranks.start("refused", arguments)
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 2
    assert said.startswith(sentence)
    assert said.count("\n") == 1
