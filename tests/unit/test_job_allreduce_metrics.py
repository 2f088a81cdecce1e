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


def test_the_gpu_that_a_rank_was_given_is_used_or_refused(main, monkeypatch):
    monkeypatch.setenv("GPUBED_DEVICE", "cuda:1")
    assert main.device_of_this_rank().type == "cuda"
    assert len(main.chosen) == 1

    def refuse(_):
        raise RuntimeError("Found no NVIDIA driver on your system.")

    monkeypatch.setattr(main.torch.cuda, "set_device", refuse)
    with pytest.raises(RuntimeError, match="no NVIDIA driver"):
        main.device_of_this_rank()


@pytest.mark.parametrize(
    ("fitting", "processors", "told"),
    [(10, 2, 2e9), (5, 2, 1e9), (5, 8, 1.6e9), (5, 64, 2e9), (1, 2, None)],
)
def test_ranks_that_find_no_memory_are_not_started(main, monkeypatch, fitting, processors, told):
    """Ten of them on a head of 2 GiB read their programs from disk without end."""
    started = []
    monkeypatch.setattr(main, "host_limit", lambda ranks, _: started.append(ranks) or 2e9)
    monkeypatch.setattr(main.room, "ranks", lambda wanted: min(wanted, fitting))
    monkeypatch.setattr(main.os, "sched_getaffinity", lambda _: range(processors))
    assert main.limit_without_links(10, 1 << 20) == told
    assert started == ([fitting] if told else [])


# What a process is told of its group, where that is in the tree that it sees, and its files.
LIMITS_OF = {
    "v2": ("0::/", "", "memory.max", "anon"),
    "v2, all of the tree": ("0::/node/user.slice", "node", "memory.max", "anon"),
    "v1": ("4:memory:/node/user", "memory", "memory.limit_in_bytes", "total_rss"),
}


@pytest.mark.parametrize("version", [*LIMITS_OF, None])
@pytest.mark.parametrize(
    ("limit", "fit"), [(2048, 5), (512, 0), (1 << 20, 10), ("max", 10)], ids=str
)
def test_memory_is_what_the_nodes_group_may_use(main, tmp_path, version, limit, fit):
    for file, text in {
        "proc/self/status": "RssAnon:\t  192000 kB\nRssFile:\t 12000 kB\n",
        "proc/self/cgroup": f"{LIMITS_OF[version][0] if version else '0::/'}\n",
        "proc/meminfo": "MemTotal: 24000000 kB\nMemAvailable:   18000000 kB\n",
    }.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    if version:
        _, group, bound, field = LIMITS_OF[version]
        folder = tmp_path / "sys/fs/cgroup" / group
        folder.mkdir(parents=True)
        (folder / bound).write_text(f"{limit if limit == 'max' else limit << 20}\n")
        (folder / "memory.stat").write_text(f"cache 1\nrss 7\n{field} {700 << 20}\n")
    assert main.room.ranks(10, tmp_path) == (fit if version else 10)


@pytest.mark.parametrize(
    ("device", "seconds", "words", "asked"),
    [
        ("cpu", 0.001, ["--host-limit", "always"], [2]),
        ("cpu", 0.001, ["--host-limit", "when-slow"], []),
        ("cpu", 1.0, ["--host-limit", "when-slow"], [2]),
        # A second rank beside a node's only GPU would have none, and the job would end with it.
        ("cuda:0", 1.0, ["--host-limit", "always"], []),
    ],
)
def test_processors_are_measured_alone_where_they_may_be_the_limit(
    main, monkeypatch, tmp_path, device, seconds, words, asked
):
    ranks = []
    timing = SimpleNamespace(size=1 << 20, seconds=seconds, cpu=0.1)
    row = {"src": "node-0", "dst": "node-1", "measured_bps": RATE}
    monkeypatch.setenv("GPUBED_DEVICE", device)
    monkeypatch.setattr(main, "measure_links", lambda *_: [row])
    monkeypatch.setattr(main.collective, "measure", lambda *_: [timing])
    monkeypatch.setattr(main.collective, "bus_factor", lambda _: 1)
    monkeypatch.setattr(main, "host_limit", lambda count, _: ranks.append(count) or 5e9)
    monkeypatch.setattr(main.room, "ranks", lambda wanted: wanted)
    metrics = run(main, monkeypatch, tmp_path, "--rate", str(RATE / 100), *words)
    assert ranks == asked
    assert metrics["host_limit_bps"] == (5e9 if asked else None)
    assert metrics["link_error"] == pytest.approx(99)
