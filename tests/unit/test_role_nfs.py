"""What role nfs finds of an owner's mounts and exports, and leaves alone.

Programs that would change this machine are STAND-INS.
"""

import subprocess
from types import SimpleNamespace

import pytest
import yaml

from support import machines
from support.role_tasks import play

pytestmark = pytest.mark.process

ROLE = machines.ROOT / "roles/nfs"
OWNERS = "UUID=1 / ext4 defaults 0 1\n", "10.9.9.9:/home /home nfs4 defaults 0 0\n"
MOUNTS = (
    "10.0.0.1:/srv/shared /shared nfs4 vers=4.2,hard 0 0\n"
    "10.0.0.1:/srv/shared/datasets /datasets nfs4 ro,vers=4.2 0 0\n"
)


def block(lines):
    """What the role's own task writes into fstab."""
    tasks = yaml.safe_load((ROLE / "tasks/mount.yml").read_text())
    [marker] = [
        task["ansible.builtin.blockinfile"]["marker"]
        for task in tasks
        if "ansible.builtin.blockinfile" in task
    ]
    return f"{marker.format(mark='BEGIN')}\n{lines}{marker.format(mark='END')}\n"


@pytest.fixture
def asked(tmp_path):
    """A function that asks the role's script on a host; folders are below `asked.root`."""
    script, fstab, mounts = ROLE / "files/nfs-mounts", tmp_path / "fstab", tmp_path / "mounts"

    def ask(*words, lines="", text="", mounted=""):
        fstab.write_text(OWNERS[0] + (block(lines) if lines else "") + text)
        mounts.write_text(mounted)
        done = subprocess.run(
            ["sh", script, fstab, mounts, *words], capture_output=True, text=True, check=True
        )
        assert not done.stderr
        return done.stdout.splitlines()

    return SimpleNamespace(ask=ask, root=tmp_path)


@pytest.mark.parametrize(
    ("mounted", "lines", "said"),
    [
        ("", "", []),
        ("/dev/sdb1 /shared ext4 rw 0 0\n", "", ["/dev/sdb1 is mounted at /shared"]),
        (MOUNTS, "", ["10.0.0.1:/srv/shared is mounted at /shared"]),
        (MOUNTS, MOUNTS, []),
        # Over ours.
        (MOUNTS + "/dev/sdb1 /shared ext4 rw 0 0\n", MOUNTS, ["/dev/sdb1 is mounted at /shared"]),
    ],
)
def test_a_mount_of_the_owners_is_named(asked, mounted, lines, said):
    assert asked.ask("foreign", "/shared", lines=lines, mounted=mounted) == said


def test_files_and_links_of_the_owners_are_named(asked):
    empty, full, link = (asked.root / name for name in ("empty", "full", "link"))
    empty.mkdir()
    full.mkdir()
    (full / "thesis").touch()
    link.symlink_to(full)
    found = asked.ask("foreign", *map(str, (empty, full, link, asked.root / "none")))
    assert found == [f"{full} holds files", f"{link} is a link"]
    # After a boot without the server, what lies below our mount point is no reason.
    assert asked.ask("foreign", str(full), lines=f"10.0.0.1:/srv {full} nfs4 rw 0 0\n") == []


def test_the_servers_own_layout_is_ours(asked):
    root, place = asked.root / "srv", asked.root / "shared"
    (root / "datasets").mkdir(parents=True)
    place.symlink_to(root)  # stands for the bind mount: the same folder
    ours = f"{root} {place} none bind 0 0\n"
    kernel = f"/dev/sda1 {place} ext4 rw 0 0\n"
    assert asked.ask("foreign", str(place), lines=ours, mounted=kernel) == []
    place.unlink()
    place.mkdir()
    assert asked.ask("foreign", str(place), lines=ours, mounted=kernel) == [
        f"/dev/sda1 is mounted at {place}"
    ]


@pytest.fixture
def mounting(tmp_path):
    """A function that mounts what `lines` say, on a host with these mounts and lines of fstab."""
    fstab, mounts = tmp_path / "fstab", tmp_path / "mounts"
    does = f'[ "$1" != --types ] || echo "$5 $6 $2 $4 0 0" >>{mounts}'

    def mount(lines, *, former="", mounted="", owners=(), entry="mount", **programs):
        fstab.write_text(OWNERS[0] + (block(former) if former else ""))
        mounts.write_text(mounted)
        ends = f'for last; do :; done; sed -i "\\\\| $last |d" {mounts}'
        known = {"systemctl": "echo LoadState=loaded; echo ActiveState=inactive"}
        return play(
            tmp_path,
            "nfs",
            entry,
            programs={**known, "mount": does, "umount": ends, **programs},
            inventory_hostname="node-1",
            gpubed_cluster="lab",
            __nfs_version_3_units=["rpcbind.socket"] if owners else [],
            __nfs_owners={"stdout_lines": list(owners)},
            __nfs_fstab_path=str(fstab),
            __nfs_mounts=str(mounts),
            __nfs_fstab=lines,
            __nfs_paths=[line.split()[1] for line in lines.splitlines()],
        )

    return mount


def test_another_path_ends_the_mount_at_the_former_one(tmp_path, mounting):
    former = MOUNTS.replace(" /", f" {tmp_path}/")
    wanted = former.replace("/shared nfs4", "/data nfs4")
    played = mounting(wanted, former=former, mounted=former)
    assert played.code == 0, played.said
    assert [call for call in played.calls if "mount" in call.split()[0]] == [
        f"umount --lazy --no-canonicalize {tmp_path}/shared",
        f"mount --types nfs4 --options vers=4.2,hard 10.0.0.1:/srv/shared {tmp_path}/data",
    ]
    assert f"{tmp_path}/data nfs4" in (tmp_path / "fstab").read_text()


def test_what_the_owner_may_need_nfs_3_for_is_not_masked(tmp_path, mounting):
    played = mounting(f"10.0.0.1:/srv {tmp_path}/shared nfs4 hard 0 0\n", owners=["mount /home"])
    assert played.code == 0, played.said
    assert not [call for call in played.calls if call.startswith("systemctl")]


NAS = "nas:/x %s nfs noauto 0 0\n"


@pytest.mark.parametrize("torn", [False, True])
def test_what_the_owner_means_to_be_mounted_there_is_named(asked, torn):
    ours = block(MOUNTS)
    text = (ours.rsplit("#", 1)[0] if torn else ours) + NAS % "/shared/"
    said = [f"{asked.root}/fstab says that nas:/x is mounted at /shared"]
    # Without its end, nobody knows whether the first of the block is ours.
    first = [said[0].replace("nas:/x", "10.0.0.1:/srv/shared")]
    assert asked.ask("foreign", "/shared", text=text) == (first if torn else said)
    assert asked.ask("foreign", "/shared", text=NAS % "/shared") == said
    assert asked.ask("foreign", "/shared", text=ours) == []


@pytest.mark.parametrize(
    ("fstab", "mounts", "exports", "told"),
    [
        ("nas:/h /home nfs vers=3 0 0\n", "", "", ["mount /home"]),
        ("nas:/h /home nfs defaults 0 0\n", "", "", ["mount /home"]),
        ("nas:/h /home nfs rw,vers=4.1 0 0\n" + MOUNTS, MOUNTS, "# /x *(rw)\n", []),
        ("", "nas:/h /home nfs rw,vers=3 0 0\n", "/x *(rw)\n", ["mount /home", "export /x"]),
    ],
)
def test_what_of_nfs_is_the_owners_is_known(tmp_path, fstab, mounts, exports, told):
    files = [tmp_path / name for name in ("fstab", "mounts", "exports")]
    for path, text in zip(files, (fstab, mounts, exports), strict=True):
        path.write_text(text)
    (tmp_path / "exports.d").mkdir()
    (tmp_path / "exports.d/gpubed.exports").write_text("/srv/gpubed/shared 10.0.0.2(rw)\n")
    command = ["sh", ROLE / "files/owners-nfs", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == told


@pytest.mark.parametrize("serving", [False, True])
def test_a_server_with_exports_of_the_owners_is_not_taken(tmp_path, serving):
    (tmp_path / "exports.d").mkdir()
    (tmp_path / "exports").write_text("/home *(rw)\n")
    (tmp_path / "mounts").touch()
    if serving:
        (tmp_path / "exports.d/gpubed.exports").touch()
    played = owners(tmp_path, paths=[str(tmp_path / "shared")])
    if serving:
        assert played.code == 0, played.said
        return
    said = " ".join(played.said.split())
    assert "node-0 serves by NFS what its owner exports: /home." in said
    assert "Nothing of it was touched" in said


def owners(folder, paths):
    """Look at what the owner has on a node that serves."""
    return play(
        folder,
        "nfs",
        "owners",
        inventory_hostname="node-0",
        gpubed_cluster="lab",
        nfs_server="node-0",
        nfs_root=str(folder / "srv"),
        gpubed_nodes=[{"name": "node-0"}],
        __nfs_fstab_path=str(folder / "fstab"),
        __nfs_mounts=str(folder / "mounts"),
        __nfs_exports=str(folder / "exports"),
        __nfs_paths=paths,
    )
