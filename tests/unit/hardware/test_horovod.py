"""Which of Horovod's settings follow from what, and which stay as Horovod has them."""

import pytest

from gpubed.hardware import horovod
from gpubed.hardware.horovod import Place

GBIT = 10**9


@pytest.mark.parametrize(
    ("cores", "ranks", "threads"), [(8, 2, 4), (8, 3, 2), (2, 4, 1), (8, 0, 8)]
)
def test_ranks_share_the_cores_of_their_node(cores, ranks, threads):
    assert horovod.derive(Place(cores, ranks)).threads == threads


@pytest.mark.parametrize("gbit", [0.2, 1, 10, 25, 40])
@pytest.mark.parametrize("rdma", [False, True])
def test_horovods_buffer_does_on_links_of_testbeds(gbit, rdma):
    """At 1 and 10 Gbit/s starts are a small share of messages of 1.4 and 14 MB."""
    place = Place(8, 1, rate_bps=int(gbit * GBIT), rdma=rdma)
    assert horovod.least_fusion_bytes(place) < horovod.DEFAULT_FUSION_MB * horovod.MIB
    assert horovod.fusion_mb(place) is None


def test_long_or_very_fast_links_need_a_larger_buffer():
    assert horovod.fusion_mb(Place(8, 1, rate_bps=GBIT, latency_s=0.01)) == 383
    assert horovod.fusion_mb(Place(8, 1, rate_bps=100 * GBIT)) == 134
    assert horovod.fusion_mb(Place(8, 1, rate_bps=100 * GBIT, rdma=True)) is None
    far = Place(8, 1, rate_bps=10 * GBIT, latency_s=0.05)
    assert horovod.fusion_mb(far) == horovod.LARGEST_FUSION_MB


def test_all_nodes_of_a_cluster_have_one_buffer():
    """Ranks that fuse other tensors than the others end in a segmentation fault."""
    network = {"rate_bps": 100 * GBIT, "latency_s": 0.001}
    places = [Place(2, 1, **network), Place(64, 8, gpus=8, **network)]
    assert len({horovod.derive(place).fusion_mb for place in places}) == 1


@pytest.mark.parametrize(
    ("place", "sleeps"),
    [
        (Place(2, 1), True),
        (Place(64, 1), True),
        (Place(64, 8, gpus=8), False),
        (Place(3, 1, gpus=1), False),
        (Place(16, 8, gpus=8), True),
        (Place(64, 8, gpus=8, shares_cpus=True), True),
    ],
)
def test_a_rank_sleeps_while_it_waits_unless_it_has_a_gpu_and_cores_to_spare(place, sleeps):
    assert horovod.derive(place).wait_us == (horovod.WAIT_US if sleeps else 0)
