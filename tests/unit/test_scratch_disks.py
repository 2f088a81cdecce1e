"""Which disks role scratch takes; lsblk's trees are synthetic."""

from pathlib import Path

import pytest

from support import by_path

SCRIPT = Path(__file__).parents[2] / "roles/scratch/files/choose_disks.py"


@pytest.fixture
def script(monkeypatch):
    module = by_path.load(SCRIPT, "choose_disks")
    monkeypatch.setattr(module, "exclusive", lambda _disk: "")
    monkeypatch.setattr(module, "signature", lambda _disk: "")
    monkeypatch.setattr(module, "tag", lambda _disk, _name: "")
    return module


def disk(name, **changes):
    return {"name": name, "type": "disk", "tran": "nvme", "ro": False, "size": "1T", **changes}


ROOT = disk("/dev/nvme0n1", children=[{"name": "/dev/nvme0n1p1"}])


def test_auto_takes_the_empty_nvme_disks(script):
    devices = [ROOT, disk("/dev/nvme2n1"), disk("/dev/nvme1n1"), disk("/dev/sda", tran="sata")]
    assert script.choose("auto", devices) == (["/dev/nvme1n1", "/dev/nvme2n1"], {}, [])


def test_a_disk_with_a_signature_is_not_free(script, monkeypatch):
    monkeypatch.setattr(script, "signature", lambda _disk: "LVM2_member")
    assert script.choose(["/dev/nvme1n1"], [disk("/dev/nvme1n1")])[1] == {
        "/dev/nvme1n1": "LVM2_member"
    }
