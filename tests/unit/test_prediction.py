"""The step time's limits, units, known points, and its interval."""

import math
from dataclasses import replace

import pytest

from gpubed.core.errors import UsageError
from gpubed.prediction import rates
from gpubed.prediction.model import Calibration, Setup, calibrated, predict
from gpubed.prediction.shapes import known_as, names, shape

RESNET = Setup("resnet50", "v100", 4, 1, 64, 10e9, rate=360.0)
# Only the link: nothing is late, negotiated or slowed, and TCP carries what frames leave it.
PLAIN = Calibration(tcp_share=0.94, socket_bps=1e15, contention=0, spread=0, overhead=0, slowdown=0)


def test_one_gpu_gives_its_rate():
    one = predict(replace(RESNET, nodes=1, transport="none", link_bps=0))
    assert one.images_per_s == pytest.approx(360)
    assert (one.low, one.high) == pytest.approx((348, 372), abs=1)  # as much as a run varies
    assert one.efficiency == pytest.approx(1)


@pytest.mark.parametrize("framework", ["horovod", "ddp"])
@pytest.mark.parametrize("transport", ["tcp", "rdma"])
def test_parts_add_up_to_the_step(framework, transport):
    found = predict(replace(RESNET, framework=framework, transport=transport, input_rate=300.0))
    assert sum(found.parts.values()) == pytest.approx(found.step_s)
    assert found.step_s == pytest.approx(4 * 64 / found.images_per_s)
    assert all(part >= 0 for part in found.parts.values())
    assert found.low < found.images_per_s < found.high


@pytest.mark.parametrize("name", ["resnet50", "vgg16", "inception3", "bert-base"])
@pytest.mark.parametrize("framework", ["horovod", "ddp"])
def test_a_faster_link_is_never_slower(name, framework):
    setup = replace(RESNET, model=name, framework=framework)
    found = [predict(replace(setup, link_bps=rate * 1e9)).images_per_s for rate in (1, 10, 25, 100)]
    assert found == sorted(found)


def test_more_nodes_compute_more_but_less_each():
    found = [predict(replace(RESNET, nodes=nodes)) for nodes in (1, 2, 4, 8, 16, 64)]
    assert [one.images_per_s for one in found] == sorted(one.images_per_s for one in found)
    assert [one.efficiency for one in found] == sorted((o.efficiency for o in found), reverse=True)


def test_a_larger_batch_hides_more():
    found = [predict(replace(RESNET, batch=size)).efficiency for size in (16, 32, 64, 128, 256)]
    assert found == sorted(found)


def test_a_link_without_limit_leaves_the_computation():
    found = predict(replace(RESNET, transport="rdma", link_bps=1e15), PLAIN)
    assert found.efficiency == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    ("name", "nodes", "rate", "seconds"),
    [
        ("resnet50", 2, 1e9, 0.870),
        ("resnet50", 4, 1e9, 1.305),
        ("resnet50", 10, 10e9, 0.157),
        ("resnet101", 4, 1e9, 2.27),
        ("vgg16", 10, 1e9, 8.48),
    ],
)
def test_gradients_need_two_thirds_and_more_of_the_line(name, nodes, rate, seconds):
    """2 (N - 1) / N of the gradients at 94 % of the line, beside an infinitely fast GPU."""
    setup = replace(RESNET, model=name, nodes=nodes, link_bps=rate, rate=1e9)
    assert predict(setup, PLAIN).step_s == pytest.approx(seconds, rel=0.03)


def test_half_as_many_bytes_take_half_the_time():
    slow = replace(RESNET, link_bps=1e9, rate=1e9)
    whole, half = predict(slow, PLAIN), predict(replace(slow, compression="fp16"), PLAIN)
    assert half.step_s == pytest.approx(whole.step_s / 2, rel=0.05)


def test_without_fusion_each_tensor_has_its_latency():
    fast = replace(RESNET, model="resnet101", gpus_per_node=4, rate=2000.0)
    assert predict(replace(fast, fusion_bytes=0)).step_s > predict(fast).step_s


def test_a_slow_reader_limits_the_node():
    found = predict(replace(RESNET, input_rate=100.0))
    assert found.images_per_s == pytest.approx(400)
    assert found.dominates == "input"


def test_two_adapters_carry_more_and_gloo_less():
    slow = replace(RESNET, link_bps=1e9)
    assert predict(replace(slow, nics=2)).images_per_s > predict(slow).images_per_s
    assert predict(replace(RESNET, collectives="gloo")).images_per_s < predict(RESNET).images_per_s


def test_less_knowledge_widens_the_interval():
    def width(setup):
        found = predict(setup)
        return math.log(found.high / found.low)

    assert width(replace(RESNET, tuned=False)) > width(RESNET)
    assert width(replace(RESNET, rate=None)) > width(RESNET)
    assert width(replace(RESNET, model="vgg16")) > width(replace(RESNET, link_bps=100e9))
    assert width(replace(RESNET, model="vgg16", rate=None)) > width(replace(RESNET, rate=None))


def test_tcp_never_carries_more_than_the_line():
    slow = replace(RESNET, link_bps=1e9, rate=1e9, nodes=10)
    most = 640 / (1.8 * 4 * shape("resnet50").parameters * 8 / 0.94e9)
    assert predict(slow).images_per_s < predict(slow).high <= most


def test_a_measured_run_calibrates_the_larger_ones():
    truth = Calibration(effective_bps=3e9)
    two = replace(RESNET, model="vgg16", nodes=2)
    local = calibrated(two, predict(two, truth).images_per_s)
    eight = replace(two, nodes=8)
    after, real = predict(eight, local), predict(eight, truth)
    assert after.images_per_s == pytest.approx(real.images_per_s, rel=0.05)
    before = predict(eight)
    assert math.log(after.high / after.low) < math.log(before.high / before.low)


def test_the_rate_of_a_node_holds_for_all_of_them():
    whole = replace(RESNET, gpus_per_node=8, link_bps=100e9, transport="rdma")
    slow = predict(replace(whole, node_rate=2400.0))
    assert slow.images_per_s < 4 * 2400 < predict(whole).images_per_s


def test_a_rate_comes_from_its_source():
    exact = predict(Setup("resnet50", "Tesla P100-PCIE-16GB", 1, 1, 64, 0, "none"))
    assert "tensorflow" in exact.rate_source
    assert exact.low < 228 < exact.high
    other = predict(Setup("resnet101", "h200", 1, 1, 64, 0, "none"))
    assert "by multiply-adds and activations" in other.rate_source


@pytest.mark.parametrize("gpu", ["p100-sxm2", "k80"])
@pytest.mark.parametrize("name", ["resnet50", "resnet152", "vgg16", "inception3"])
def test_a_rate_of_another_model_is_within_its_error(monkeypatch, gpu, name):
    def found():
        return rates.lookup(gpu, name, shape(name), 32, "fp32")

    measured = found()
    others = tuple(row for row in rates.table() if row.model != name)
    monkeypatch.setattr(rates, "table", lambda: others)
    guessed = found()
    assert abs(math.log(guessed.images_per_s / measured.images_per_s)) < 2 * guessed.error


@pytest.mark.parametrize(
    ("gpu", "family"),
    [
        ("V100-SXM2-32GB", "v100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx 2080 ti"),
        ("MI250X GCD", "mi250x"),
    ],
)
def test_names_of_gpus_become_their_model(gpu, family):
    assert rates.family(gpu) == family
    assert family in rates.gpus()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "resnet55"}, "near it are resnet50"),
        ({"gpu": "v1000", "rate": None}, "near it are v100"),
        ({"nodes": 0}, "nodes is 0"),
        ({"batch": -1}, "batch is -1"),
        ({"gpus_per_node": 10**20}, "gpus_per_node is 1"),
        ({"transport": "pigeon"}, "transport is 'pigeon'"),
        ({"transport": "none"}, "4 nodes have no link"),
        ({"link_bps": 0}, "4 nodes have no link"),
        ({"rate": -3.0}, "rate is -3"),
        ({"cycle_s": -0.001}, "cycle_s is -0.001"),
        ({"cycle_s": math.nan}, "cycle_s is nan"),
        ({"fusion_bytes": -1.0}, "fusion_bytes is -1"),
        ({"gpu": "cpu", "collectives": "nccl"}, "not CPUs"),
    ],
)
def test_a_wrong_set_up_is_named(change, said):
    with pytest.raises(UsageError, match=said) as caught:
        predict(replace(RESNET, **change))
    assert caught.value.hint


def test_shapes_have_the_models_parameters():
    known = {"resnet50": (25_557_032, 161), "vgg16": (138_357_544, 32), "alexnet": (61_100_840, 16)}
    for name, (parameters, tensors) in known.items():
        one = shape(name)
        assert one.parameters == parameters
        assert sum(len(layer.tensors) for layer in one.layers) == tensors
    assert shape("resnet50").macs == pytest.approx(4.089e9, rel=0.001)
    assert known_as("ResNet-50 v1.5") == known_as("resnet50v1.5") == "resnet50"
    assert len(names()) > 80


def test_the_largest_tensor_of_vgg_is_ready_early():
    done, size = max(shape("vgg16").readiness, key=lambda tensor: tensor[1])
    assert size / shape("vgg16").parameters == pytest.approx(0.743, abs=0.001)
    assert done < 0.01
