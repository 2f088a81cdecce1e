"""What an owner had in files that roles write is his again when his host is let go.

The roles' own tasks and hooks run here, in a folder as the host's root; programs that would
change this machine are STAND-INS.
"""

import json
import os
import shutil
import subprocess
import sys

import pytest
import yaml
from jinja2 import Environment, StrictUndefined

from support import machines
from support.role_tasks import ANSIBLE, play
from support.shell_host import ShellHost

ROLES = machines.ROOT / "roles"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
OWNERS = f"# mine\ngit.lab {KEY}\n"
# The hook of ssh_mesh looks for an account, which nobody here has.
MESH = {
    "gpubed_user": "nobody-here",
    "__ssh_mesh_key": "id_gpubed",
    "__ssh_mesh_authorized_keys": "/etc/gpubed/authorized_keys.d/%u",
}
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


@pytest.fixture
def meshed(tmp_path):
    """A function that makes host keys of nodes known in a file, by ssh_mesh's own tasks."""
    (tmp_path / "templates").symlink_to(ROLES / "ssh_mesh/templates")
    (tmp_path / "ansible.cfg").touch()

    def make(path, *names):
        files = (ROLES / f"ssh_mesh/tasks/{name}.yml" for name in ("leaving", "client"))
        tasks = [task for file in files for task in yaml.safe_load(file.read_text())]
        names_of = (
            "Put aside the known hosts",
            "Give the owner his SSH back",
            "Tell the client",
            "Make the host keys of all nodes known",
        )
        chosen = [task for task in tasks if task["name"].startswith(names_of)]
        nodes = [
            {
                "name": name,
                "control_address": f"10.0.0.{index}",
                "experiment_address": None,
                "port": 22,
                "host_keys": [KEY],
            }
            for index, name in enumerate(names)
        ]
        values = {
            "ansible_python_interpreter": sys.executable,
            "gpubed_nodes": nodes,
            "__ssh_mesh_known_hosts": str(path),
            "__ssh_mesh_config": str(path.with_name("10-gpubed.conf")),
            "__ssh_mesh_leaving": str(path.with_name("hook")),
            **MESH,
        }
        plays = {"hosts": "localhost", "gather_facts": False, "vars": values, "tasks": chosen}
        (tmp_path / "play.yml").write_text(json.dumps([plays]))
        done = subprocess.run(
            [ANSIBLE, "-i", "localhost,", "-c", "local", tmp_path / "play.yml"],
            env={**os.environ, "ANSIBLE_CONFIG": str(tmp_path / "ansible.cfg")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    return make


def is_known(name, path):
    found = subprocess.run(["ssh-keygen", "-F", name, "-f", path], capture_output=True, check=False)
    return found.returncode == 0


@needs_root
@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="needs ssh-keygen")
def test_host_keys_that_the_owner_knew_stay_known(host, meshed):
    known = host.etc / "ssh/ssh_known_hosts"
    known.write_text(OWNERS)
    meshed(known, "node-0", "node-1")
    assert [is_known(name, known) for name in ("git.lab", "node-1", "10.0.0.1")] == [True] * 3
    meshed(known, "node-0")
    assert [is_known(name, known) for name in ("git.lab", "node-1")] == [True, False]
    host.sh(hook_of("ssh_mesh", **MESH))
    assert known.read_text() == OWNERS


@needs_root
@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="needs ssh-keygen")
@pytest.mark.parametrize(
    ("name", "hook", "stays"),
    [
        ("[node-9]:222,[node-9.control]:222", "sshd -t && systemctl reload ssh\n", False),
        # The owner's own Ansible has written the file since.
        ("git.lab", "sshd -t && systemctl reload ssh\n", True),
        # Settings are there, but no block: his Ansible wrote the file anew, or a run broke off.
        ("git.lab", "# BEGIN gpubed role ssh_mesh\n", True),
    ],
)
def test_only_known_hosts_that_a_former_version_wrote_are_put_aside(
    host, meshed, name, hook, stays
):
    """It wrote the file as a whole, and its hook knew of no block."""
    known = host.etc / "ssh/ssh_known_hosts"
    former = f"# Ansible managed\n{name} {KEY}\n"
    known.write_text(former)
    known.with_name("10-gpubed.conf").touch()
    known.with_name("hook").write_text(hook)
    meshed(known, "node-0")
    first = name.split(",")[0]
    assert [is_known(name, known) for name in ("node-0", first)] == [True, stays]
    aside = known.with_name("ssh_known_hosts.before-gpubed")
    assert (aside.read_text() if aside.exists() else None) == (None if stays else former)
    assert "BEGIN gpubed role ssh_mesh" in known.with_name("hook").read_text()


@needs_root
def test_a_block_that_lost_its_end_stays(host, meshed):
    known = host.etc / "ssh/ssh_known_hosts"
    meshed(known, "node-0")
    whole = known.read_text()
    torn = whole.rsplit("#", 1)[0] + OWNERS
    # The next run of the role writes another one.
    for left in (torn, torn + whole):
        known.write_text(left)
        host.sh(hook_of("ssh_mesh", **MESH))
        assert known.read_text() == torn


@pytest.mark.parametrize("there", [True, False])
def test_sshd_is_the_owners_again_in_any_case(host, there):
    if there:
        (host.etc / "ssh/ssh_known_hosts").write_text(OWNERS)
    for name in ("ssh_config.d/10-gpubed.conf", "sshd_config.d/10-gpubed.conf"):
        (host.etc / "ssh" / name).parent.mkdir()
        (host.etc / "ssh" / name).write_text("# managed\n")
    assert host.sh(hook_of("ssh_mesh", **MESH)).returncode == 0
    assert host.called == ["sshd -t", "systemctl reload ssh"]
    assert not list(host.etc.glob("ssh/*/*gpubed*"))


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
