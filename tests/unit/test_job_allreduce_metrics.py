"""What job allreduce reports; torch, psutil and Horovod are STAND-INS of a world of one rank.

The job itself runs in tests/e2e, on real ranks.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from gpubed.jobs import jobfile
from support import by_path

JOB = Path(__file__).parents[2] / "jobs/allreduce"
RATE = 1e9


@pytest.fixture
def main(monkeypatch):
    """The job's program."""
    chosen = []
    torch = SimpleNamespace(
        device=lambda text: SimpleNamespace(type=text.split(":")[0], __str__=lambda: text),
        cuda=SimpleNamespace(set_device=chosen.append),
        set_num_threads=lambda _: None,
        Tensor=None,
        __version__="0",
    )
    horovod = SimpleNamespace(
        init=lambda: None, shutdown=lambda: None, allgather_object=lambda mine: [mine]
    )
    for name, module in {
        "torch": torch,
        "psutil": SimpleNamespace(),
        "horovod": SimpleNamespace(torch=horovod),
        "horovod.torch": horovod,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("collective", "links", "room", "transports"):
        monkeypatch.setitem(sys.modules, name, by_path.load(JOB / f"{name}.py", name))
    module = by_path.load(JOB / "main.py", "allreduce_main")
    module.chosen = chosen
    return module


def run(main, monkeypatch, folder, *words):
    (folder / "hostfile").write_text("node-0 slots=1\n")
    for name, value in {"RANK": "0", "SIZE": "1", "LOCAL_RANK": "0", "LOCAL_SIZE": "1"}.items():
        monkeypatch.setenv(f"HOROVOD_{name}", value)
    monkeypatch.setattr(sys, "argv", ["main.py", "--out", str(folder), *words])
    main.main()
    return json.loads((folder / "metrics.json").read_text())


def test_one_rank_alone_reports_that_there_is_nothing_to_send(main, monkeypatch, tmp_path):
    metrics = run(main, monkeypatch, tmp_path, "--rate", str(RATE))
    described = yaml.safe_load((JOB / "job.yml").read_text())
    assert set(described["metrics"]) == set(metrics)
    assert (metrics["links"], metrics["allreduce"], metrics["busbw_bps"]) == ([], [], None)
    job = jobfile.load("allreduce")
    assert not [why for one in job.sanity if (why := one.broken_by(metrics, ranks=1))]


def test_a_pretended_gpu_is_reported_as_such(main, monkeypatch, tmp_path):
    monkeypatch.setenv("GPUBED_DEVICE", "cpu")
    monkeypatch.setenv("GPUBED_DEVICE_NAME", "cpu (simulated A100-SXM4-80GB)")
    monkeypatch.setenv("GPUBED_SIMULATED", "A100-SXM4-80GB")
    metrics = run(main, monkeypatch, tmp_path)
    assert metrics["device"] == "cpu (simulated A100-SXM4-80GB)"
    assert metrics["simulated"] is True


# What a process is told of its group, where that is in the tree that it sees, and its files.
