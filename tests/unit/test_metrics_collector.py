"""`gpubed-metrics`: what nvidia-smi, the kernel's log and cgroups say, as figures."""

import pytest

from gpubed.core.paths import assets
from support import by_path

ROLE = assets() / "roles" / "monitoring"


@pytest.fixture
def collector(monkeypatch):
    """The program that writes figures, beside what role health installs."""
    monkeypatch.syspath_prepend(str(assets() / "roles/health/files"))
    return by_path.load(ROLE / "files/gpubed-metrics", "gpubed_metrics")


def test_a_lost_gpu_is_no_row_and_the_others_keep_theirs(collector, monkeypatch):
    lost = "Unable to determine the device handle for GPU0: 0000:17:00.0: Unknown Error"
    count = len(collector.IDENTITY) + len(collector.FIELDS) + len(collector.REASONS)
    row = ", ".join(["1", "0000:65:00.0", "NVIDIA H100", *["7"] * (count - 3)])
    monkeypatch.setattr(collector, "output", lambda *_: f"{lost}\n{row}\n")
    found = list(collector.gpus())
    assert ("gpubed_gpus_present", 1, {}) in found
    assert any(one.name == "gpubed_gpu_info" and one.labels["gpu"] == "1" for one in found)


def test_no_account_puts_a_node_out_of_use_by_the_name_of_a_file(collector, monkeypatch):
    """The kernel logs the name of the file in which a program went wrong."""
    forged = (
        "1763704000.1 n kernel: a.out[7]: segfault at 0 ip 00 sp 00 error 4 in NVRM: Xid "
        "(PCI:0000:af:00): 79, x[7f0000000000+1000]\n"
        "1763704000.1 n kernel: x: nvidia-nvswitch0: SXid (PCI:0000:af:00): 1, Fatal, y\n"
    )
    monkeypatch.setattr(collector, "output", lambda *_: forged)
    assert list(collector.xids()) == []
    assert not collector.sys.modules["gpubed_health.xids"].SWITCH.search(forged)


# What files of the kernel say to a container of 6 GiB and two CPUs: recorded on a local node
# (cgroup v1, its own part of the tree), and as the same under cgroup v2 (all of the tree).
CGROUPS = {
    "v1": {
        "proc/1/cgroup": """9:name=systemd:/gpubed_03b2/7021db/init.scope
4:memory:/gpubed_03b2/7021db
3:cpuacct,cpu:/gpubed_03b2/7021db
0::/gpubed_03b2/7021db/init.scope
""",
        "sys/fs/cgroup/unified/gpubed_03b2/cgroup.procs": "",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "6442450944\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "513687552\n",
        "sys/fs/cgroup/memory/memory.stat": "cache 37986304\ntotal_inactive_file 17182720\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpuacct/cpuacct.usage": "16013341539\n",
    },
    "v2": {
        "proc/1/cgroup": "0::/gpubed_03b2/7021db/init.scope\n",
        "sys/fs/cgroup/gpubed_03b2/7021db/memory.max": "6442450944\n",
        "sys/fs/cgroup/gpubed_03b2/7021db/memory.current": "513687552\n",
        "sys/fs/cgroup/gpubed_03b2/7021db/memory.stat": "anon 463032320\ninactive_file 17182720\n",
        "sys/fs/cgroup/gpubed_03b2/7021db/cpu.max": "200000 100000\n",
        "sys/fs/cgroup/gpubed_03b2/7021db/cpu.stat": "usage_usec 16013341\nuser_usec 1\n",
    },
}


def kernel(root, *files):
    start = f"1 (systemd) S {' '.join(['0'] * 18)} {1330100} 7\n"
    said = {"proc/1/stat": start, "proc/stat": "cpu 1 2\nbtime 1795708477\nprocesses 9\n"}
    for path, text in {**said, **dict(files)}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


@pytest.mark.parametrize("version", CGROUPS)
def test_a_container_tells_of_its_own_memory_and_cpus(collector, tmp_path, version):
    kernel(tmp_path, *CGROUPS[version].items())
    told = {name: value for name, value, _ in collector.container(tmp_path)}
    assert told["gpubed_container_memory_limit_bytes"] == 6 * 2**30
    assert told["gpubed_container_memory_used_bytes"] == 513687552 - 17182720
    assert told["gpubed_container_cpus"] == 2
    assert told["gpubed_container_cpu_seconds_total"] == pytest.approx(16.013341)
    ticks = collector.os.sysconf("SC_CLK_TCK")
    started = told["gpubed_container_start_timestamp_seconds"]
    assert started == pytest.approx(1795708477 + 1330100 / ticks)
