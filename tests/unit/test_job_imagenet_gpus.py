"""What job imagenet asks of GPUs, and of what lies between them.

torch is a STAND-IN here; what needs real GPUs is in tests/gpu.
"""

import os
from types import SimpleNamespace

import pytest

from support.imagenet import CPU, GPU, job

__all__ = ["job"]
TOLD = """node-0:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA
node-0:1:1 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM
"""


def refused(job, monkeypatch, *words, device="cpu"):
    main = job("main")
    monkeypatch.setattr(main.model, "fault", lambda *_: "")
    monkeypatch.setenv("GPUBED_DEVICE", device)
    return main.fault(main.make_parser().parse_args(words))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--precision", "tf32"), "precision=tf32 is for GPUs"),
        (("--transport", "rdma"), "transport=rdma is for GPUs"),
        (("--hierarchical-allreduce", "true"), "hierarchical_allreduce is for GPUs"),
    ],
)
def test_what_only_gpus_have_is_refused_on_a_cpu_and_not_passed_over(job, monkeypatch, words, why):
    assert refused(job, monkeypatch, *words).startswith(why)
    assert refused(job, monkeypatch, *words, device="cuda:1") == ""


def test_what_is_horovods_is_refused_by_others(job, monkeypatch):
    words = ("--hierarchical-allreduce", "true", "--framework", "ddp")
    said = refused(job, monkeypatch, *words, device="cuda:0")
    assert said.startswith("hierarchical_allreduce is Horovod's")


@pytest.mark.parametrize(
    ("precision", "newer", "older"), [("fp32", "ieee", False), ("tf32", "tf32", True)]
)
def test_fp32_is_fp32_wherever_factors_are_multiplied(job, precision, newer, older):
    """torch's default rounds them in convolutions alone."""
    main = job("main")
    backends = main.torch.backends
    backends.cudnn = SimpleNamespace(conv=SimpleNamespace())
    main.round_factors(wanted=precision == "tf32")
    assert backends.cudnn.conv.fp32_precision == backends.cuda.matmul.fp32_precision == newer
    backends.cudnn = SimpleNamespace()
    main.round_factors(wanted=precision == "tf32")
    assert backends.cudnn.allow_tf32 is backends.cuda.matmul.allow_tf32 is older


def test_sums_within_nodes_first_need_as_many_ranks_on_each(job, monkeypatch):
    averaging = job("averaging")
    monkeypatch.setattr(os, "environ", {})
    ranks = averaging.Horovod(averaging.Options())._hvd.mpi_ops
    ranks.is_homogeneous.return_value = False
    with pytest.raises(averaging.Unfit, match="as many ranks on each node"):
        averaging.Horovod(averaging.Options(hierarchical=True))
    ranks.is_homogeneous.return_value = True
    averaging.Horovod(averaging.Options(hierarchical=True))
    assert os.environ["HOROVOD_TORUS_ALLREDUCE"] == "1"


# Between nodes


def test_nccl_is_told_before_it_starts_and_tells_what_it_used(job, monkeypatch, tmp_path):
    transport = job("transport")
    for asked, net in (("tcp", "Socket"), ("rdma", "IB"), ("auto", None)):
        monkeypatch.setattr(os, "environ", {})
        transport.choose(asked, GPU, tmp_path)
        assert os.environ.get("NCCL_NET") == net
        assert os.environ["NCCL_DEBUG"] == "INFO"
    (tmp_path / ".nccl/node-0.17").write_text(TOLD)
    told = transport.told(GPU, tmp_path)
    assert told == "NET/IB/GDRDMA, P2P/CUMEM"
    assert not transport.is_tcp(told)
    assert transport.is_tcp("NET/Socket, P2P/CUMEM")


def test_cpus_go_by_tcp_and_change_nothing(job, monkeypatch, tmp_path):
    transport = job("transport")
    monkeypatch.setattr(os, "environ", {})
    transport.choose("tcp", CPU, tmp_path)
    assert os.environ == {}
    assert transport.told(CPU, tmp_path) == "TCP"
    assert transport.is_tcp("TCP")


def test_what_nccl_cannot_do_is_a_sentence(job):
    main = job("main")
    main.torch.OutOfMemoryError = MemoryError
    given = main.make_parser().parse_args(["--transport", "rdma"])
    error = RuntimeError("NCCL error in: x.cpp:1, invalid usage\nmore")
    assert main.words(error, given, GPU).startswith("NCCL does not start with transport=rdma here")


@pytest.fixture
def counters(job, monkeypatch, tmp_path):
    """The module that reads counters, and folders as Linux has them: two ports, an interface."""
    usage = job("usage")
    monkeypatch.setattr(usage, "SYS", tmp_path)
    for adapter, (sent, received) in {"mlx5_0": (100, 10), "mlx5_1": (200, 20)}.items():
        folder = tmp_path / "infiniband" / adapter / "ports/1/counters"
        folder.mkdir(parents=True)
        (folder / "port_xmit_data").write_text(f"{sent}\n")
        (folder / "port_rcv_data").write_text(f"{received}\n")
    for name, kind in (("eth1", "1"), ("ib0", "32")):
        (tmp_path / "net" / name).mkdir(parents=True)
        (tmp_path / "net" / name / "type").write_text(f"{kind}\n")
    moved = SimpleNamespace(bytes_sent=7, bytes_recv=3)
    usage.psutil.net_io_counters.return_value = {"eth1": moved, "ib0": moved}
    return usage


@pytest.mark.parametrize(
    ("device", "interface", "moved"),
    [
        (CPU, "eth1", (7, 3)),
        (GPU, "eth1", (1207, 123)),
        (GPU, "ib0", (1200, 120)),  # IP over InfiniBand is in the adapter's count
        (GPU, "none", (1200, 120)),
        (CPU, "none", (None, None)),
    ],
)
def test_what_rdma_moves_no_interface_counts(counters, monkeypatch, device, interface, moved):
    monkeypatch.setenv("GPUBED_INTERFACE", interface)
    assert counters.Usage(device)._moved() == moved


def test_without_adapters_the_interface_is_all_there_is(counters, monkeypatch, tmp_path):
    monkeypatch.setenv("GPUBED_INTERFACE", "eth1")
    (tmp_path / "infiniband/mlx5_0/ports/1/counters/port_rcv_data").unlink()
    assert counters.Usage(GPU)._moved() == (7, 3)
    monkeypatch.setattr(counters, "SYS", tmp_path / "nothing")
    assert counters.Usage(GPU)._moved() == (7, 3)


# Ranks that wait throughout


def test_parts_that_cannot_be_told_apart_are_none(job):
    timing = job("timing")
    figures = {"step_s": 1.0, "step_sd_s": 0.1, "data_s": 0.1, "compute_s": 0.9}
    found = timing.without_sharding(figures, None)
    assert (found["step_s"], found["data_s"]) == (1.0, 0.1)
    parts = ("compute_s", "compute_sd_s", "exposed_communication_s", "exposed_communication_sd_s")
    assert [found[name] for name in parts] == [None] * 4
    report = job("report")
    ranks = [{"rank": 0, "host": "node-0", "compute_s": None}]
    assert report._stragglers(ranks) == {"slowest_rank": None, "straggler_ratio": None}
    assert report._mean([1.0, 3.0]) == 2
    assert report._mean([1.0, None]) is None


def test_a_model_that_one_gpu_has_no_room_for_is_not_timed_alone(job):
    """On one rank is enough: the parts of a step are means over all of them."""
    training = job("training")
    training.torch.OutOfMemoryError = MemoryError

    def told(everyone, step):
        one = object.__new__(training.Training)
        one.device = GPU
        one.averaging = SimpleNamespace(gather=lambda mine: [mine, *everyone])
        one._steps_alone = step
        return one._time_alone(SimpleNamespace(to=lambda device: device))

    def full(_):
        raise MemoryError

    assert told([0.5], lambda _: 0.25) == 0.25
    assert told([None], lambda _: 0.25) is None
    assert told([0.5], full) is None
    training.torch.cuda.reset_peak_memory_stats.assert_called_with(GPU)


def test_noise_is_not_learned_faster_by_more_ranks(job):
    training = job("training")
    one = object.__new__(training.Training)
    one.schedule = SimpleNamespace(images_per_step=7680, per_epoch=100, total=100)
    one._base_rate, one.settings = 0.01, SimpleNamespace(dataset=None)
    assert one._rate(20) == 0.01
    one.settings.dataset = "imagenet"
    assert one._rate(20) == pytest.approx(0.3)


# Cores


@pytest.mark.parametrize(
    ("own", "others", "threads"),
    [
        ({0, 1, 2, 3}, [{0, 1, 2, 3}], 2),  # four cores for two ranks
        ({0, 1, 2, 3}, [{4, 5, 6, 7}], 4),  # bound to four cores of their own
        ({0, 1}, [{2, 3, 4, 5, 6, 7}], 2),
        ({0}, [{0}, {0}], 1),
    ],
)
def test_cores_of_a_machine_are_shared_out_once(job, monkeypatch, own, others, threads):
    main = job("main")
    monkeypatch.setattr(main, "THREADS", 64)
    monkeypatch.setattr(main.os, "sched_getaffinity", lambda _: own, raising=False)

    def gather(mine):
        return [mine, *((mine[0], cores) for cores in others), ("another machine", {0, 1, 2})]

    main.share_processors(SimpleNamespace(gather=gather))
    main.torch.set_num_threads.assert_called_once_with(threads)


def test_batches_are_pinned_ahead_for_the_gpu_of_the_rank(job):
    pipeline = job("pipeline")
    one = object.__new__(pipeline.Pipeline)
    one._device = GPU
    pinned = SimpleNamespace(pin_memory=lambda: "pinned")
    batches = one._ahead(iter([(pinned, pinned)]))
    assert next(batches) == ("pinned", "pinned")
    pipeline.torch.cuda.set_device.assert_called_once_with(GPU)
    one._device = CPU
    assert next(one._ahead(iter([("images", "labels")]))) == ("images", "labels")
