"""What an owner had in files that roles write is his again when his host is let go.

The roles' own tasks and hooks run here, in a folder as the host's root; programs that would
change this machine are STAND-INS.
"""

import os
import subprocess

import pytest
from jinja2 import Environment, StrictUndefined

from support import machines
from support.role_tasks import play
from support.shell_host import ShellHost

ROLES = machines.ROOT / "roles"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
OWNERS = f"# mine\ngit.lab {KEY}\n"
TORN = f"# BEGIN gpubed role ssh_mesh\nnode-0 {KEY}\n"
BLOCK = f"{TORN}# END gpubed role ssh_mesh\n"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="tasks give files to root")


def hook_of(role, **variables):
    text = (ROLES / role / "templates/leave.j2").read_text()
    hook = Environment(undefined=StrictUndefined).from_string(text)
    return hook.render(ansible_managed="managed", **variables)


@pytest.fixture
def host(tmp_path):
    there = ShellHost(tmp_path / "host")
    for name in ("systemctl", "sshd"):
        there.program(name)
    (there.etc / "ssh").mkdir()
    return there


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"{OWNERS}{BLOCK}{OWNERS}", OWNERS * 2),
        (BLOCK, None),
        (OWNERS, OWNERS),
        # Without its end, nobody knows which lines are the owner's.
        (f"{TORN}{OWNERS}", f"{TORN}{OWNERS}"),
        (f"{TORN}{OWNERS}{BLOCK}", f"{TORN}{OWNERS}{BLOCK}"),
    ],
)
def test_host_keys_that_a_former_version_wrote_go_and_the_owners_stay(tmp_path, text, left):
    known = tmp_path / "ssh_known_hosts"
    known.write_text(text)
    subprocess.run(["sh", ROLES / "ssh_mesh/files/forget-block", known], check=True)
    assert (known.read_text() if known.exists() else None) == left


@pytest.fixture
def routed(tmp_path):
    """Files in which role rdma has told an owner's Open MPI to use the device, and its hooks."""
    there = tmp_path / "there"
    there.mkdir()
    file = there / "openmpi-mca-params.conf"
    file.write_text("btl_base_verbose = 1\n")
    hooks = {f"__rdma_{name}": str(there / name) for name in ("leaving", "mpi_leaving")}
    played = play(
        tmp_path,
        "rdma",
        "mpi",
        gpubed_networks={"experiment": {"subnet": "10.0.1.0/24"}},
        __rdma_device={"stdout": "rxe0"},
        __rdma_ucx=str(there / "ucx/ucx.conf"),
        __rdma_openmpi=str(file),
        **hooks,
    )
    assert played.code == 0, played.said
    assert "pml = ucx" in file.read_text()
    return file, list(hooks.values())


def run(hooks):
    for hook in hooks:
        assert subprocess.run(["sh", hook], check=False).returncode == 0


@needs_root
def test_open_mpi_chooses_for_itself_again(routed):
    file, hooks = routed
    run(hooks)
    assert [path for path in file.parent.rglob("*") if path.is_file()] == [file]
    assert file.read_text() == "btl_base_verbose = 1\n"


@needs_root
def test_what_the_owner_wrote_after_a_torn_block_of_open_mpi_stays(routed):
    file, hooks = routed
    mine, block = "oob_base_verbose = 1\n", file.read_text().split("\n", 1)[1]
    torn = "# BEGIN gpubed rdma\npml = ucx\n" + mine
    file.write_text(torn + block + mine)
    run(hooks)
    assert file.read_text() == torn + mine


@needs_root
def test_an_open_mpi_that_is_gone_by_then_is_no_fault(routed):
    file, hooks = routed
    file.unlink()
    run(hooks)
    assert not file.exists()


@needs_root
def test_a_range_of_ports_is_not_there_any_more(tmp_path):
    there = tmp_path / "etc"
    there.mkdir()
    hook = there / "nccl-ports"
    played = play(
        tmp_path,
        "nccl",
        "ports",
        programs={"sysctl": "echo 32768 60999"},
        nccl_port_range="50000-51000",
        gpubed_uuid="0f0e",
        ansible_managed="managed",
        __nccl_sysctl=str(there / "90-gpubed-nccl.conf"),
        __nccl_ports_leaving=str(hook),
    )
    assert played.code == 0, played.said
    assert "50000 51000" in (there / "90-gpubed-nccl.conf").read_text()
    subprocess.run([hook], check=True)
    assert list(there.iterdir()) == []


@pytest.mark.parametrize("ours", [True, False])
def test_a_jupyterlab_of_the_owners_stays_where_none_is_wanted(tmp_path, ours):
    unit, folder = tmp_path / "jupyterlab.service", tmp_path / "jupyterlab"
    folder.mkdir()
    unit.write_text(f"ExecStart=jupyter-lab --config={folder if ours else '/home/me'}/config.py\n")
    played = play(
        tmp_path,
        "jupyterlab",
        "absent",
        programs={"systemctl": "echo LoadState=loaded; echo ActiveState=inactive"},
        gpubed_uuid="0f0e",
        __jupyterlab_unit_file=str(unit),
        __jupyterlab_folder=str(folder),
        __jupyterlab_page=str(tmp_path / "page.json"),
        __jupyterlab_kernel=str(tmp_path / "kernel.json"),
        __jupyterlab_head_leaving=str(tmp_path / "hook"),
    )
    assert played.code == 0, played.said
    assert (unit.exists(), folder.exists()) == (not ours, False)
    assert any("systemctl" in call for call in played.calls) is ours
    assert "firewall.close jupyterlab" in played.calls
