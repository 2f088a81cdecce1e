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


def test_each_disk_that_was_named_and_is_not_free_has_its_reason(script):
    refused = script.choose(["/dev/nvme0n1", "/dev/sdx", "/dev/sda"], [ROOT, disk("/dev/sda")])[1]
    assert refused == {"/dev/nvme0n1": "it has /dev/nvme0n1p1", "/dev/sdx": "not there"}


@pytest.mark.process
def test_an_empty_file_is_seen_as_empty_and_a_file_system_as_one(tmp_path):
    real = by_path.load(SCRIPT, "choose_disks_real")
    blank = tmp_path / "blank"
    blank.write_bytes(bytes(2**20))
    assert real.signature(str(blank)) == ""
    swap = bytearray(2**20)
    swap[4086:4096] = b"SWAPSPACE2"
    swap[1024:1028] = (1).to_bytes(4, "little")  # version
    swap[1028:1032] = (255).to_bytes(4, "little")  # last page
    (tmp_path / "swap").write_bytes(swap)
    assert real.signature(str(tmp_path / "swap")) == "swap"


def test_a_disk_is_known_by_the_name_that_it_keeps(script, monkeypatch, tmp_path):
    """Which one is /dev/nvme1n1 may be another after a restart."""
    disk, other = tmp_path / "nvme1n1", tmp_path / "nvme2n1"
    by_id = tmp_path / "by-id"
    by_id.mkdir()
    (by_id / "nvme-Acme_7").symlink_to(disk)
    monkeypatch.setattr(script, "_BY_ID", by_id)
    assert script.lasting(str(disk)) == str(by_id / "nvme-Acme_7")
    assert script.lasting(str(other)) == str(other)


class TestDisksThatOutliveTheirNode:
    """A cloud's data volume comes back to the node that replaces its own."""

    @pytest.fixture(autouse=True)
    def _file_system(self, script, monkeypatch):
        tags = {"UUID": "ours", "LABEL": "gpubed"}
        monkeypatch.setattr(script, "signature", lambda _disk: "xfs")
        monkeypatch.setattr(script, "tag", lambda _disk, name: tags[name])

    def test_the_clusters_own_is_kept(self, script):
        assert script.choose(["/dev/vdb"], [disk("/dev/vdb")], "ours") == ([], {}, ["/dev/vdb"])

    @pytest.mark.parametrize(
        "changes", [{"ro": True}, {"type": "part"}, {"children": [{"name": "/dev/vdb1"}]}]
    )
    def test_what_cannot_be_mounted_is_not(self, script, changes):
        _, refused, kept = script.choose(["/dev/vdb"], [disk("/dev/vdb", **changes)], "ours")
        assert (list(refused), kept) == (["/dev/vdb"], [])

    def test_one_in_use_is_not(self, script, monkeypatch):
        monkeypatch.setattr(script, "exclusive", lambda _disk: "in use")
        assert script.choose(["/dev/vdb"], [disk("/dev/vdb")], "ours")[2] == []

    def test_another_clusters_is_refused_and_named(self, script):
        _, refused, kept = script.choose(["/dev/vdb"], [disk("/dev/vdb")], "another")
        assert (refused, kept) == ({"/dev/vdb": "xfs"}, [])
        assert script.former(refused, "gpubed") == ["/dev/vdb"]

    def test_of_an_array_nothing_is_kept(self, script):
        both = [disk("/dev/vdb"), disk("/dev/vdc")]
        assert script.choose(["/dev/vdb", "/dev/vdc"], both, "ours")[2] == []
