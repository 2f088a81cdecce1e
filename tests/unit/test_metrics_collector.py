"""`gpubed-metrics`: what nvidia-smi, the kernel's log and cgroups say, as figures."""

import pytest

from gpubed.core.paths import assets
from support import by_path

ROLE = assets() / "roles" / "monitoring"

# What the kernel logs, in the forms of drivers 535 to 595.
XIDS = """\
1763704000.1 n kernel: NVRM: Xid (PCI:0000:af:00): 31, pid=7, name=python, MMU Fault
1763704001.2 n kernel: NVRM: Xid (PCI:0000:af:00 GPU-I:01): 79, GPU has fallen off the bus.
1763704002.3 n kernel: NVRM: Xid (0000:3b:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09
1763704003.4 n kernel: NVRM: Xid (PCI:0000:3b:00): 149, NETIR_LINK_EVT  Nonfatal XC0 i0 Link 09
1763704004.5 n kernel: NVRM: Xid (PCI:0000:af:00): 154, GPU recovery action changed from \
0x0 (None) to 0x4 (Drain and Reset)
1763704005.6 n kernel: NVRM: Xid (PCI:0000:af:00): 154, GPU recovery action changed from \
0x4 (Drain and Reset) to 0x1 (GPU Reset Required)
"""


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


def test_xids_come_with_what_role_health_says_is_to_be_done(collector, monkeypatch):
    """A node that is in quarantine for an Xid and its alert must not disagree."""
    monkeypatch.setattr(collector, "output", lambda *_: XIDS)
    found = list(collector.xids())
    assert {one.name for one in found} == {"gpubed_gpu_xid_timestamp_seconds"}
    assert {(*one.labels.values(), one.value) for one in found} == {
        ("0000:af:00", 31, "", 1763704000.1),
        ("0000:af:00", 79, "switch the machine off and on", 1763704001.2),
        ("0000:3b:00", 149, "reset the GPU, look at its NVLinks if it comes back", 1763704002.3),
        ("0000:3b:00", 149, "", 1763704003.4),
        ("0000:af:00", 154, "GPU Reset Required", 1763704005.6),
    }


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


@pytest.mark.parametrize("version", CGROUPS)
def test_a_container_without_limits_tells_of_none(collector, tmp_path, version):
    unlimited = {"memory.max": "max", "memory.limit_in_bytes": "9223372036854771712"}
    unlimited |= {"cpu.max": "max 100000", "cpu.cfs_quota_us": "-1"}
    files = {path: unlimited.get(path.split("/")[-1], s) for path, s in CGROUPS[version].items()}
    kernel(tmp_path, *files.items())
    told = [one.name for one in collector.container(tmp_path)]
    assert told == [
        "gpubed_container_cpu_seconds_total",
        "gpubed_container_start_timestamp_seconds",
    ]
