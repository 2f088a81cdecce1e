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
