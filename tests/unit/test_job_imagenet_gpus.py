"""What job imagenet asks of GPUs, and of what lies between them.

torch is a STAND-IN here; what needs real GPUs is in tests/gpu.
"""

from types import SimpleNamespace

import pytest

from support.imagenet import CPU, GPU, job

__all__ = ["job"]


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


# Between nodes


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


# Ranks that wait throughout


# Cores
