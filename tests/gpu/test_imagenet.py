"""Job imagenet on a real GPU, on one rank and on two."""

import json
import math
import re
from pathlib import Path

import pytest

from support.job_ranks import JOB, SMALL, is_whole

pytestmark = pytest.mark.gpu
ADAPTERS = Path("/sys/class/infiniband")

# How far products and convolutions in single precision are off, as `main` has them computed.
ROUNDING = """
import json, sys
sys.path.insert(0, sys.argv[1])
import main, torch
from torch.nn.functional import conv2d
drawn = torch.Generator().manual_seed(1)
left, right = (torch.randn(512, 512, generator=drawn, dtype=torch.double) for _ in range(2))
image = torch.randn(8, 64, 32, 32, generator=drawn, dtype=torch.double)
kernel = torch.randn(64, 64, 3, 3, generator=drawn, dtype=torch.double)
off = {}
for wanted in (False, True):
    main.round_factors(wanted=wanted)
    off[wanted] = [
        ((function(*(x.float().cuda() for x in given)).double().cpu() - known).abs().max()
         / known.abs().max()).item()
        for function, given in ((torch.matmul, (left, right)), (conv2d, (image, kernel)))
        for known in [function(*given)]
    ]
print(json.dumps([off[False], off[True]]))
"""


def has_horovod(gpus):
    if not gpus.has("horovod.torch"):
        pytest.skip(f"{gpus.python} has no Horovod")


@pytest.fixture(scope="module")
def on_two(ranks):
    return ranks.run("two", "--steps", 8, "--warmup-steps", 2)[0]


def test_single_precision_is_rounded_where_it_is_asked_for_alone(gpus):
    done = gpus.run("-c", ROUNDING, JOB)
    assert done.returncode == 0, done.stderr
    exact, rounded = json.loads(done.stdout)
    assert max(exact) < 1e-5
    capable = gpus.run("-c", "import torch; print(torch.cuda.get_device_capability()[0] >= 8)")
    if capable.stdout.strip() == "True":
        assert min(rounded) > 1e-4


def test_the_parts_of_a_step_are_the_step(ranks):
    options = ("--model", "resnet50", "--image-size", 224, "--batch-size", 64)
    found, said = ranks.run("alone", *options, "--steps", 60, "--warmup-steps", 20, ranks=1)
    assert is_whole(found)
    assert found["images_per_s"] == pytest.approx(64 / found["step_s"], rel=0.01)
    assert found["exposed_communication_s"] == 0
    assert found["device"] == f"cuda:{ranks.name}"
    assert found["gpu_percent"] > 50
    # Weights, gradients and momentum, and what 64 images leave on their way.
    assert found["gpu_memory_bytes"] > 4 * 3 * found["parameters"]
    assert all(found["versions"][name] for name in ("torch", "cuda", "cudnn", "nccl"))
    assert re.search(r"^progress: 60/60 steps, \d+ images/s, data .* ms, compute ", said, re.M)


@pytest.mark.parametrize("precision", ["tf32", "fp16", "bf16"])
def test_less_precision_learns_as_well(ranks, precision):
    """With fp16 the first steps may find how far losses are to be scaled, and change nothing."""
    options = ("--steps", 40, "--warmup-steps", 2, "--precision", precision)
    found, _ = ranks.run(precision, *options, "--channels-last", "true", ranks=1)
    assert found["precision"] == precision
    assert found["loss"] < found["loss_first"] / 4


def test_two_ranks_sum_with_nccl_over_tcp(on_two):
    assert is_whole(on_two)
    assert all(is_whole(rank) for rank in on_two["ranks"])
    assert on_two["exposed_communication_s"] > 0
    assert on_two["transport"] == "NET/Socket"
    assert on_two["interface"] == "lo"


def test_averaged_at_once_the_whole_communication_shows(ranks, on_two):
    options = ("--steps", 8, "--warmup-steps", 2, "--overlap", "false")
    found, _ = ranks.run("once", *options)
    assert is_whole(found)
    assert found["busbw_bps"] == pytest.approx(
        8 * found["gradient_bytes"] / found["exposed_communication_s"]
    )
    assert found["loss"] == pytest.approx(on_two["loss"], rel=1e-2)


def test_sharded_ranks_learn_the_same(ranks, on_two):
    options = ("--steps", 8, "--warmup-steps", 2, "--framework", "fsdp")
    found, _ = ranks.run("sharded", *options)
    assert is_whole(found)
    assert found["loss"] == pytest.approx(on_two["loss"], rel=1e-2)


def test_sharded_ranks_need_less_of_the_gpus_memory(ranks):
    """A model of many layers of a size: weights, gradients and momentum fill the memory."""
    options = ("--model", "vit_l_16", "--image-size", 224, "--batch-size", 1)
    options += ("--steps", 3, "--warmup-steps", 1)
    whole, _ = ranks.run("vit-whole", *options)
    shared, _ = ranks.run("vit-shared", *options, "--framework", "fsdp")
    assert whole["gpu_memory_bytes"] > 4 * 3 * whole["parameters"]
    assert shared["gpu_memory_bytes"] < 0.7 * whole["gpu_memory_bytes"]


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--overlap", "false"),
        ("--compression", "fp16"),
        ("--hierarchical-allreduce", "true"),
        ("--transport", "tcp"),
    ],
    ids=str,
)
def test_horovods_ranks_learn_the_same(gpus, ranks, on_two, options):
    has_horovod(gpus)
    name = "horovod" + "".join(map(str, options))
    done = ranks.launched(name, *SMALL, "--steps", 8, "--warmup-steps", 2, *options)
    assert done.returncode == 0, done.stderr
    found = ranks.metrics(name)
    assert is_whole(found)
    assert (found["framework"], found["transport"]) == ("horovod", "NET/Socket")
    assert found["loss"] == pytest.approx(on_two["loss"], rel=0.05)


def test_horovods_ranks_sum_up_passes_of_scaled_losses(gpus, ranks):
    has_horovod(gpus)
    options = ("--precision", "fp16", "--backward-passes-per-step", 2, "--steps", 20)
    done = ranks.launched("passes", *SMALL, *options, "--warmup-steps", 2)
    assert done.returncode == 0, done.stderr
    found = ranks.metrics("passes")
    assert is_whole(found)
    assert found["loss"] < found["loss_first"]


@pytest.mark.parametrize("framework", ["ddp", "horovod"])
def test_rdma_that_is_not_there_is_one_sentence(gpus, ranks, framework):
    if any(ADAPTERS.glob("*")):
        pytest.skip("this machine has RDMA adapters")
    if framework == "horovod":
        has_horovod(gpus)
        options = (*SMALL, "--steps", 8, "--transport", "rdma")
        done = ranks.launched("no-rdma", *options)
        code, said = done.returncode, done.stdout + done.stderr
    else:
        options = (*SMALL, "--steps", "8", "--transport", "rdma")
        started = [ranks.start("no-rdma-ddp", options, rank, 2) for rank in range(2)]
        said = "".join(process.communicate(timeout=300)[1] for process in started)
        code = started[0].returncode
    assert code == 1, "it went by something else"
    assert "NCCL does not start with transport=rdma here" in said


def test_autotune_finds_settings(gpus, ranks):
    has_horovod(gpus)
    options = (*SMALL, "--steps", 1260, "--warmup-steps", 1250, "--autotune", "true")
    done = ranks.launched("tuned", *options)
    assert done.returncode == 0, done.stderr
    assert ranks.metrics("tuned")["tuned_fusion_mb"] is not None


def test_a_run_that_goes_on_learns_what_an_unbroken_one_does(ranks):
    options = ("--steps", 6, "--warmup-steps", 1, "--checkpoint", "kept", "--checkpoint-steps", 2)
    whole, _ = ranks.run("whole", *options)
    *_, last = sorted((ranks.storage / "checkpoints/kept").glob("*.pt"))
    last.write_bytes(last.read_bytes()[:1000])
    again, said = ranks.run("again", *options)
    assert f"checkpoint {last} is damaged" in said
    assert (whole["resumed_at"], again["resumed_at"]) == (0, 4)
    assert again["loss"] == pytest.approx(whole["loss"], rel=2e-2)


def test_who_is_asked_to_end_keeps_what_it_has(ranks):
    arguments = (*SMALL, "--steps", "100000", "--checkpoint", "asked")
    both = [ranks.start("asked", arguments, rank, 2) for rank in range(2)]
    for line in both[0].stdout:
        if line.startswith("progress:"):
            break
    both[1].terminate()
    said = [rank.communicate(timeout=60) for rank in both]
    assert [rank.returncode for rank in both] == [1, 1], said
    assert all("asked to end; step" in error for _, error in said)


def test_images_are_read_and_held_out_ones_are_recognised(ranks):
    ranks.make_images("colours/train", 16)
    ranks.make_images("colours/val", 7)
    found, _ = ranks.run("images", "--dataset", "colours", "--epochs", 4, "--warmup-steps", 2)
    assert is_whole(found)
    assert round(found["val_accuracy"] * 21, 6).is_integer()


def test_what_does_not_fit_is_one_sentence(gpus, ranks):
    size = gpus.run("-c", "import torch; print(torch.cuda.mem_get_info()[1])").stdout
    # Of vgg16's first layer, 64 channels of 224 x 224 numbers are kept of each image.
    batch = math.ceil(int(size) / (64 * 224 * 224 * 4) / 4)
    arguments = ("--model", "vgg16", "--steps", "2", "--batch-size", str(batch))
    process = ranks.start("too-large", arguments)
    said = process.communicate(timeout=600)[1]
    assert process.returncode == 1
    assert f"--set batch_size={batch // 2}" in said
    assert said.count("\n") == 1


def test_the_allreduce_of_two_ranks_is_timed(gpus, ranks):
    has_horovod(gpus)
    program = JOB.parent / "allreduce/main.py"
    given = ("--only-allreduce", "--bytes", 16 << 20)
    done = ranks.launched("allreduce", *given, program=program)
    assert done.returncode == 0, done.stderr
    found = ranks.metrics("allreduce")
    assert found["device"] == f"cuda:{ranks.name}"
    assert [row["bytes"] for row in found["allreduce"]] == [
        64 << 10,
        256 << 10,
        1 << 20,
        4 << 20,
        16 << 20,
    ]
    assert all(row["busbw_bps"] > 1e6 for row in found["allreduce"])
