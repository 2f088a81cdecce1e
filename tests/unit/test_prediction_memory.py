"""The memory that a training needs on one GPU, held against what an H200 measured."""

import json
import re
from pathlib import Path

import pytest

from gpubed.core.errors import UsageError
from gpubed.prediction.memory import CONTEXT_BYTES, advice, need
from gpubed.prediction.model import Setup
from gpubed.prediction.shapes import shape

RATES = Path(__file__).parents[1] / "gpu" / "rates.json"
POINTS = [point for gpu in json.loads(RATES.read_text()).values() for point in gpu["points"]]


@pytest.mark.parametrize(
    "point",
    POINTS,
    ids=lambda point: f"{point['model']}-{point['batch_size']}-{point['precision']}",
)
def test_the_memory_of_each_measured_point_is_predicted_within_a_tenth(point):
    found = need(shape(point["model"]), point["batch_size"], point["precision"])
    assert found.allocated == pytest.approx(point["gpu_memory_bytes"], rel=0.1)
    assert found.low <= point["gpu_memory_bytes"] + CONTEXT_BYTES <= found.high
    assert sum(found.parts.values()) == pytest.approx(found.allocated)


def test_small_batches_of_alexnet_take_as_much_since_the_optimizers_step_takes_most():
    small, larger = (need(shape("alexnet"), batch, "bf16") for batch in (8, 32))
    assert small.moment == larger.moment == "update"
    assert larger.allocated == pytest.approx(small.allocated, rel=0.02)


def test_adam_keeps_twice_the_state_of_momentum():
    sgd, adam = (need(shape("vgg16"), 32, "bf16", name) for name in ("sgd", "adam"))
    assert adam.parts["optimizer"] == 2 * sgd.parts["optimizer"] == 8 * shape("vgg16").parameters


def test_channels_last_has_no_room_for_ffts():
    found = need(shape("resnet50"), 32, channels_last=True)
    assert found.moment == "backward"
    assert found.allocated < need(shape("resnet50"), 32).allocated / 2


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ((32, "fp8"), "unknown precision 'fp8'"),
        ((32, "fp32", "lamb"), "unknown optimizer 'lamb'"),
        ((0,), "batch 0 is no batch"),
    ],
)
def test_an_impossible_training_is_refused(given, why):
    with pytest.raises(UsageError, match=why):
        need(shape("resnet50"), *given)


@pytest.mark.parametrize(
    ("model", "batch", "memory", "ranks", "link", "way", "words"),
    [
        ("resnet50", 64, 16e9, 4, 10e9, "data parallel", "0.12 s of a step at 10 Gbit/s"),
        ("resnet50", 256, 13e9, 4, 10e9, "data parallel", "without room for the fastest"),
        ("vit_h_14", 64, 24e9, 4, 1e9, "pipeline", r"\(32 images fit\); on 4 ranks"),
        ("vit_h_14", 8, 9e9, 4, 400e9, "fsdp", "fsdp sends for 0.11 s"),
        ("vit_h_14", 64, 4e9, 2, 10e9, "pipeline", "on [0-9]+ ranks"),
        ("vit_h_14", 8, 0.1e9, 2, 10e9, "tensor parallel", r"\(no images fit\), and neither"),
    ],
)
def test_the_advice_follows_memory_and_link(model, batch, memory, ranks, link, way, words):
    setup = Setup(model, "v100", ranks, 1, batch, link, precision="bf16")
    found, why = advice(setup, memory, step_s=0.5)
    assert (found, bool(re.search(words, why))) == (way, True), why
