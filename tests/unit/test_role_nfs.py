"""What role nfs undoes when an own host is let go: its own hook runs, in a folder as its root.

Programs that would change this machine are STAND-INS.
"""

import subprocess
from types import SimpleNamespace

import pytest
import yaml

from support import machines, role_variables
from support.role_tasks import play
from support.shell_host import ShellHost

ROLE = machines.ROOT / "roles/nfs"
OWNERS = "UUID=1 / ext4 defaults 0 1\n", "10.9.9.9:/home /home nfs4 defaults 0 0\n"
MOUNTS = (
    "10.0.0.1:/srv/shared /shared nfs4 vers=4.2,hard 0 0\n"
    "10.0.0.1:/srv/shared/datasets /datasets nfs4 ro,vers=4.2 0 0\n"
)
EXPORTS = "exports.d/gpubed.exports"


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
def host(tmp_path):
    """A host with the role's configuration; `leave` runs the hook, told what is mounted."""
    there = ShellHost(tmp_path)
    for name in ("umount", "exportfs", "systemctl"):
        there.program(name)
    for name in ("nfs.conf.d/gpubed.conf", "modprobe.d/gpubed-nfs.conf"):
        (there.etc / name).parent.mkdir()
        (there.etc / name).write_text("# Written by role nfs.\n")
    (there.etc / "exports.d").mkdir()
    there.masked = tmp_path / "masked"
    there.masked.write_text("")

    def leave(mounted=""):
        (tmp_path / "mounts").write_text(mounted)
        hook = role_variables.template(
            "nfs",
            "leave.j2",
            "debian-12",
            ansible_managed="managed",
            gpubed_uuid="0f0e",
            __nfs_mounts=str(tmp_path / "mounts"),
            __nfs_masked=str(there.masked),
            __nfs_leaving=str(tmp_path / "hook"),
        )
        done = there.sh(hook)
        assert (done.returncode, done.stderr) == (0, "")
        return [call for call in there.called if call != "systemctl daemon-reload"]

    there.leave = leave
    return there


def test_a_worker_unmounts_lazily_and_boots_without_the_cluster(host):
    (host.etc / "fstab").write_text(OWNERS[0] + block(MOUNTS) + OWNERS[1])
    assert host.leave(MOUNTS) == [
        "umount --lazy --no-canonicalize /shared",
        "umount --lazy --no-canonicalize /datasets",
    ]
    assert (host.etc / "fstab").read_text() == "".join(OWNERS)
    assert "systemctl daemon-reload" in host.called
    assert not list(host.etc.glob("*/gpubed*.conf"))
    assert not host.masked.exists()


def test_what_somebody_else_mounted_there_stays(host):
    (host.etc / "fstab").write_text(block(MOUNTS))
    assert host.leave("10.9.9.9:/home /shared nfs4 rw 0 0\n") == []
    assert (host.etc / "fstab").read_text() == ""


def test_a_head_exports_nothing_of_ours_any_more_and_keeps_the_data(host, tmp_path):
    root, place, other = (tmp_path / name for name in ("srv", "shared", "datasets"))
    root.mkdir()
    (root / "results").write_text("42")
    place.symlink_to(root)  # stands for the bind mount: the same folder
    other.mkdir()
    lines = f"{root} {place} none bind 0 0\n{root} {other} none bind,ro 0 0\n"
    (host.etc / "fstab").write_text(block(lines) + OWNERS[0])
    for name in (EXPORTS, "exports.d/owner.exports"):
        (host.etc / name).write_text("/srv 10.0.0.2(rw)\n")
    mounted = f"/dev/sda1 {place} ext4 rw 0 0\n/dev/sdb1 {other} ext4 rw 0 0\n"
    host.program("exportfs", f"cat {host.etc}/exports.d/gpubed.exports")
    assert host.leave(mounted) == [
        f"umount --lazy --no-canonicalize {place}",
        "exportfs -ra",
        "systemctl try-restart nfs-server.service",
    ]
    assert [path.name for path in (host.etc / "exports.d").iterdir()] == ["owner.exports"]
    assert (root / "results").read_text() == "42"
    assert (host.etc / "fstab").read_text() == OWNERS[0]


def test_a_block_without_its_end_stays_whole(host):
    """What is mounted as the lines after it say may be the owner's."""
    torn = OWNERS[0] + block(MOUNTS).rsplit("#", 1)[0] + OWNERS[1]
    (host.etc / "fstab").write_text(torn)
    assert host.leave(MOUNTS + OWNERS[1]) == []
    assert (host.etc / "fstab").read_text() == torn
    # The next run of the role writes another one.
    (host.etc / "fstab").write_text(torn + block("10.0.0.1:/srv/shared /data nfs4 rw 0 0\n"))
    assert host.leave(MOUNTS + OWNERS[1]) == []
    assert (host.etc / "fstab").read_text() == torn


def test_settings_of_the_owners_under_the_roles_names_stay(host):
    (host.etc / "fstab").write_text("")
    own = host.etc / "nfs.conf.d/gpubed.conf"
    own.write_text("# mine\n")
    host.leave()
    assert own.read_text() == "# mine\n"
    assert not (host.etc / "modprobe.d/gpubed-nfs.conf").exists()


def test_what_of_nfs_3_the_owner_had_in_use_comes_back(host):
    (host.etc / "fstab").write_text(OWNERS[0])
    host.masked.write_text("rpcbind.socket\nrpcbind.service\n")
    host.program("systemctl", 'case "$*" in "is-enabled rpcbind.socket") echo enabled ;; esac')
    changed = [call for call in host.leave() if "is-enabled" not in call]
    assert changed == [
        "systemctl unmask rpcbind.socket rpcbind.service",
        "systemctl start rpcbind.socket",
    ]


def test_the_owners_server_starts_anew_with_his_settings_also_after_a_run_cut_short(host):
    (host.etc / "fstab").write_text("")
    host.masked.write_text("rpcbind.socket\n")
    (host.etc / EXPORTS).write_text("/srv 10.0.0.2(rw)\n")
    host.program("systemctl", 'case "$*" in daemon-*) kill -KILL $PPID ;; esac')
    with pytest.raises(AssertionError):
        host.leave()
    assert (host.etc / EXPORTS).read_text() == ""
    host.program("systemctl", 'case "$*" in is-en*) echo enabled ;; esac')
    last = host.leave()[-2:]
    assert last == ["systemctl start rpcbind.socket", "systemctl try-restart nfs-server.service"]
    assert not (host.etc / EXPORTS).exists()


def test_the_role_installs_it_and_notes_once_what_was_in_use(tmp_path):
    hook, masked = tmp_path / "leave.d/nfs", tmp_path / "lib/masked"
    states = "case $2 in rpcbind.socket) echo enabled ;; rpcbind.service) echo masked ;; esac"
    names = {"__nfs_leaving": str(hook), "__nfs_masked": str(masked), "ansible_managed": "managed"}
    names["gpubed_uuid"] = "0f0e"
    played = play(tmp_path, "nfs", "leaving", programs={"systemctl": states}, **names)
    assert played.code == 0, played.said
    assert masked.read_text() == "rpcbind.socket\n"
    assert f'"mark": "{masked}"' in hook.read_text()
    assert hook.read_text().endswith(f"rm -f {hook}\n")
    # Killed before the note was whole, it is written anew.
    masked.unlink()
    cut = {"systemctl": "kill -KILL $PPID"}
    assert play(tmp_path, "nfs", "leaving", programs=cut, **names).code != 0
    again = play(tmp_path, "nfs", "leaving", programs={"systemctl": states}, **names)
    assert masked.read_text() == "rpcbind.socket\n", again.said
    # The role has masked it since.
    again = play(tmp_path, "nfs", "leaving", programs={"systemctl": "echo masked"}, **names)
    assert again.code == 0, again.said
    assert masked.read_text() == "rpcbind.socket\n"


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


@pytest.mark.parametrize(
    ("wanted", "ended"),
    [
        (MOUNTS, []),
        (MOUNTS.replace("vers=4.2", "vers=4.1"), []),
        (MOUNTS.replace(" /shared ", " /data "), ["/shared"]),
        (MOUNTS.replace("10.0.0.1", "10.0.0.2"), ["/shared", "/datasets"]),
    ],
)
def test_what_is_mounted_elsewhere_or_from_elsewhere_is_known_as_former(asked, wanted, ended):
    assert asked.ask("former", wanted, lines=MOUNTS, mounted=MOUNTS) == ended


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


def test_a_mount_with_other_options_that_was_busy_is_renewed_by_the_next_run(tmp_path, mounting):
    former = f"10.0.0.1:/srv {tmp_path}/shared nfs4 vers=4.2,proto=tcp,nconnect=8 0 0\n"
    wanted = former.replace("proto=tcp,nconnect=8", "proto=rdma,port=20049")
    assert mounting(wanted, former=former, mounted=former, umount="exit 32").code != 0
    played = mounting(wanted, former=wanted, mounted=former)
    assert played.code == 0, played.said
    assert [call for call in played.calls if "mount" in call.split()[0]] == [
        f"umount {tmp_path}/shared",
        f"mount --types nfs4 --options vers=4.2,proto=rdma,port=20049 10.0.0.1:/srv "
        f"{tmp_path}/shared",
    ]


@pytest.mark.parametrize("said", ["mount /home", "export /srv"])
def test_what_the_owner_may_need_nfs_3_for_is_not_masked(tmp_path, mounting, said):
    played = mounting(f"10.0.0.1:/srv {tmp_path}/shared nfs4 hard 0 0\n", owners=[said])
    assert played.code == 0, played.said
    assert not [call for call in played.calls if call.startswith("systemctl")]


def test_another_mount_in_the_place_of_ours_is_not_gone_on_with(tmp_path, mounting):
    line = f"10.0.0.1:/srv {tmp_path}/shared nfs4 hard 0 0\n"
    played = mounting(line, mounted=line.replace("10.0.0.1", "nas"), entry="mounted")
    said = " ".join(played.said.split())
    assert played.code != 0
    assert f"has not the shared folder at {tmp_path}/shared after mounting it" in said


KERNELS = "rw,nosuid,noatime,vers=4.2,rsize=262144,hard,nocto,acregmin=600,proto=tcp,nconnect=8"
WANTED = "ro,nocto,actimeo=600,vers=4.2,hard,rsize=1048576,_netdev,proto=tcp,nconnect=8"


@pytest.mark.parametrize(
    ("wanted", "has", "beside", "told"),
    [
        (WANTED, f"ro,{KERNELS}", "", []),
        (WANTED, KERNELS, "", ["/data"]),
        (WANTED.replace("=tcp", "=rdma"), f"ro,{KERNELS}", "", ["/data"]),
        (WANTED.replace("=600", "=60"), f"ro,{KERNELS}", "", ["/data"]),
        (WANTED.replace("=8", "=4"), f"ro,{KERNELS}", "", ["/data"]),
        # The kernel has one number of connections for all that comes from a server.
        (WANTED.replace("=8", "=4"), f"ro,{KERNELS}", "10.0.0.1:/home /home nfs4 rw 0 0\n", []),
        (WANTED.replace(",nconnect=8", ",nconnect=1"), "ro," + KERNELS[:-11], "", []),
    ],
)
def test_options_are_compared_with_what_the_kernel_tells(asked, wanted, has, beside, told):
    line = "10.0.0.1:/srv /data nfs4 %s 0 0\n"
    assert asked.ask("stale", line % wanted, mounted=beside + line % has) == told


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
    ("line", "mounted", "told"),
    [
        ("/srv", "", True),
        ("/srv/gpubed/shared", "", True),
        ("/srv", "nas:/x /srv nfs rw 0 0\n", False),
        ("/srv/gpubed/sha", "", False),
        ("/", "", False),
    ],
)
def test_a_file_system_above_that_is_not_mounted_is_named(asked, line, mounted, told):
    """What is made there would lie on the root disk, hidden once it is."""
    found = asked.ask("above", "/srv/gpubed/shared", "/", text=NAS % line, mounted=mounted)
    said = f"{asked.root}/fstab says that nas:/x is mounted at {line}, and it is not now"
    assert found == [said] * told


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


def test_a_former_server_exports_nothing_any_more(tmp_path):
    exports = tmp_path / "gpubed.exports"
    exports.write_text("/srv/gpubed/shared 10.0.0.2(rw)\n")
    names = {"__nfs_exported": str(exports)}
    programs = {"exportfs": f"[ ! -s {exports} ]", "systemctl": ""}
    played = play(tmp_path, "nfs", "former_server", programs=programs, **names)
    assert played.code == 0, played.said
    assert not exports.exists()
    assert played.calls[0] == "exportfs -ra"
    assert played.calls[-1] == "systemctl try-restart nfs-server.service"


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


def test_what_is_the_owners_is_refused_in_words(tmp_path):
    (tmp_path / "mounts").write_text("/dev/sdb1 /shared ext4 rw 0 0\n")
    played = owners(tmp_path, paths=["/shared"])
    said = " ".join(played.said.split())
    assert played.code != 0
    assert "/dev/sdb1 is mounted at /shared. Nothing of it was touched." in said
    assert "storage.shared.path" in said
