"""On own hosts role scratch takes nothing that is there already, and removes what it made.

The role's own tasks and scripts run, in folders of a test; disks and mounts are STAND-INS'.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys

import pytest

from support import machines
from support.role_tasks import play

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.geteuid() != 0, reason="it gives folders to accounts"),
]
# blkid tells a disk's TYPE and LABEL from files; findmnt what is mounted, from a file.
PROGRAMS = """
blkid: for last; do :; done; cat "$WORLD/blkid/$(basename "$last").$5" 2>/dev/null || exit 2
findmnt: cat "$WORLD/mounted" 2>/dev/null
lsblk: if [ "$1" = --json ]; then cat "$WORLD/disks.json"; else cat "$WORLD/below"; fi
mkfs.xfs: n=$WORLD/blkid/$(basename $4); echo xfs >$n.TYPE; echo $3 >$n.LABEL; echo ${6#*=} >$n.UUID
mount: [ -s "$WORLD/owned/scratch" ] && echo "$WORLD/nvme1n1" >"$WORLD/mounted"
umount: rm "$WORLD/mounted"
wipefs: for last; do :; done; rm "$WORLD/blkid/$(basename "$last")".*
mdadm: rm "$WORLD/md-scratch"
"""


class Host:
    """A node on which the role runs, time and again."""

    def __init__(self, folder):
        self.root, self.path, self.uuid = folder, folder / "scratch", "0f0e"
        self.record, self.hook = folder / "owned/scratch", folder / "leave.d/scratch"
        self.mounted = folder / "mounted"
        (folder / "blkid").mkdir()
        (folder / "disks.json").write_text('{"blockdevices": []}')
        pairs = (line.split(": ", 1) for line in PROGRAMS.strip().splitlines())
        self.programs = {name: does.replace("$WORLD", str(folder)) for name, does in pairs}

    def disk(self, name, **known):
        """Add a disk; `known` is what blkid tells about it."""
        path, disks = self.root / name, self.root / "disks.json"
        path.touch()
        shown = json.loads(disks.read_text())
        row = {"name": str(path), "type": "disk", "tran": "nvme", "ro": False, "size": "1T"}
        disks.write_text(json.dumps({"blockdevices": [*shown["blockdevices"], row]}))
        (self.root / "below").write_text(f"{path} disk\n")
        for tag, value in known.items():
            (self.root / "blkid" / f"{name}.{tag}").write_text(f"{value}\n")
        return path

    def labelled(self, name):
        return (self.root / "blkid" / f"{name}.LABEL").exists()

    def written(self):
        return json.loads(self.record.read_text())

    def run(self, *, enabled=True, **variables):
        return play(
            self.root,
            "scratch",
            "main",
            programs=self.programs,
            inventory_hostname="node-0",
            gpubed_cluster="lab",
            gpubed_uuid=self.uuid,
            gpubed_fingerprints={},
            gpubed_user="daemon",
            scratch_enabled=enabled,
            scratch_path=str(self.path),
            __scratch_array=str(self.root / "md-scratch"),
            __scratch_fstab=str(self.root / "fstab"),
            __scratch_leaving=str(self.hook),
            ansible_managed="managed",
            __scratch_record=str(self.record),
            **variables,
        )

    def up(self, **variables):
        done = self.run(**variables)
        assert done.code == 0, done.said
        return done

    def leave(self, *words):
        """Let the host go: its hook runs."""
        path = f"{self.root / 'bin'}{os.pathsep}{os.environ['PATH']}"
        subprocess.run(["sh", self.hook, *words], env={"PATH": path}, check=True)

    def down(self):
        return self.up(enabled=False)

    def refused(self, *words, **variables):
        done = self.run(**variables)
        said = " ".join(done.said.split())
        assert done.code != 0
        assert [word for word in words if word not in said] == []
        return done


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


def test_a_folder_of_the_roles_own_comes_and_goes(host):
    host.up()
    assert host.written()["made"] is True
    assert host.path.joinpath("datasets").owner() == "daemon"
    (host.path / "datasets/shard").touch()
    host.up()
    assert host.written()["made"] is True
    host.down()
    assert not host.path.exists()
    assert not host.record.exists()


def test_a_disk_of_the_roles_own_comes_and_goes(host):
    disk = host.disk("nvme1n1")
    host.up()
    assert host.written()["disks"] == [str(disk)]
    assert host.labelled("nvme1n1")
    assert "LABEL=gpubed" in (host.root / "fstab").read_text()
    host.down()
    assert not host.labelled("nvme1n1")
    assert not host.mounted.exists()
    assert not host.path.exists()
    assert "gpubed" not in (host.root / "fstab").read_text()


def test_the_record_is_written_before_anything_is_made(host):
    host.disk("nvme1n1")
    host.programs["mkfs.xfs"] = "exit 1"
    assert host.run().code != 0
    assert host.written()["disks"] == [str(host.root / "nvme1n1")]
    assert not host.path.exists()


def test_a_folder_with_files_is_refused(host):
    host.path.mkdir()
    (host.path / "thesis").touch()
    owner = host.path.owner()
    host.refused(f"cannot give {host.path} to scratch: it holds files", "Nothing was touched")
    assert (host.path.owner(), host.record.exists()) == (owner, False)
    host.down()
    assert (host.path / "thesis").exists()


def test_a_mount_of_the_owners_is_refused_and_outlives_the_role(host):
    host.disk("nvme7n1", TYPE="ext4", LABEL="owners")
    host.path.mkdir()
    host.mounted.write_text("/dev/owners\n")
    host.refused("/dev/owners is mounted there")
    calls = host.down().calls
    assert not [call for call in calls if call.startswith(("umount", "wipefs", "mdadm"))]
    assert host.path.is_dir()


def test_an_empty_folder_is_given_back_as_it_was(host):
    host.path.mkdir(mode=0o1777)
    host.path.chmod(0o1777)
    host.up()
    assert host.path.owner() == "daemon"
    (host.path / "results").touch()
    host.down()
    assert [path.name for path in host.path.iterdir()] == ["results"]
    assert host.path.owner() == "root"
    assert host.path.stat().st_mode & 0o7777 == 0o1777


def test_only_disks_that_still_carry_the_label_are_wiped(host):
    """Those that the owner has taken since, or that the record does not name, are not."""
    host.up()
    labels = {"nvme1n1": "gpubed", "nvme2n1": "owners", "nvme3n1": "any:md-scratch"}
    disks = [host.disk(name, LABEL=label) for name, label in labels.items()]
    host.disk("nvme4n1", LABEL="gpubed")
    host.record.write_text(json.dumps(host.written() | {"disks": [str(path) for path in disks]}))
    (host.root / "md-scratch").touch()
    host.mounted.write_text(f"{disks[0]}\n")
    host.down()
    left = [name for name in (*labels, "nvme4n1") if host.labelled(name)]
    assert left == ["nvme2n1", "nvme4n1"]


def test_a_bind_mount_of_the_owners_keeps_all_that_is_in_it(host):
    """It is of the same file system, so that rm would not stop there."""
    host.up()
    home, inside = host.root / "home", host.path / "alice with space"
    inside.mkdir()
    home.mkdir()
    (home / "thesis").write_text("42")
    assert bound(host, home, inside) == (1, f"{inside}. Nothing was removed")
    assert (home / "thesis").read_text() == "42"
    assert host.record.exists()


def bound(host, source, place):
    """Remove scratch where `source` is mounted at `place` as well; say what came of it."""
    script = machines.ROOT / "roles/scratch/files/remove_scratch.py"
    bind, remove = ["mount", "--bind", source, place], [sys.executable, script, host.record]
    both = " && ".join(shlex.join(map(str, words)) for words in (bind, remove))
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", both], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr.strip().partition("did not make: ")[2]


def test_what_a_cluster_left_behind_is_not_its_own_any_more_when_it_comes_back(host):
    host.up()
    (host.path / "thesis").touch()
    host.leave()
    assert not host.hook.exists()
    assert host.written()["given_up"] is True
    host.down()
    assert (host.path / "thesis").exists()
    host.refused("it holds files, and what a cluster left there is the owner's since it let this")
    (host.path / "thesis").unlink()
    host.up()
    assert "given_up" not in host.written()


def test_disks_of_a_host_that_was_let_go_are_not_wiped(host):
    host.disk("nvme1n1")
    host.up()
    host.leave()
    host.down()
    assert host.labelled("nvme1n1")
    host.mounted.unlink()
    host.refused("was a cluster's scratch, and is the owner's since it let this host go")


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("place", ["scratch", "."])
def test_what_the_owner_mounts_there_or_above_is_refused_although_it_is_not_mounted(
    host, place, torn
):
    """It may come at any time, and hide what was made."""
    owners = f"nas:/fast {host.root}/{place} nfs noauto 0 0\n"
    (host.root / "fstab").write_text("# BEGIN gpubed role scratch\n" * torn + owners)
    host.refused(f"{host.root}/fstab says that nas:/fast is mounted", "Nothing was touched")
    assert not host.path.exists()
    assert (host.root / "fstab").read_text().endswith(owners)


def test_a_named_disk_that_outlives_its_node_is_mounted_again(host):
    """The record was on the root disk of the node before."""
    disk = host.disk("nvme1n1")
    assert "mkfs.xfs" in str(host.up(scratch_devices=[str(disk)]).calls)
    host.record.unlink()
    host.mounted.unlink()
    shutil.rmtree(host.path)
    calls = str(host.up(scratch_devices=[str(disk)]).calls)
    assert "mkfs.xfs" not in calls
    assert f"{disk} {host.path}" in calls
    assert host.written()["disks"] == [str(disk)]
