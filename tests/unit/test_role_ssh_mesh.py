"""Role ssh_mesh on a host that belongs to somebody: whose keys are where, and what is left.

The role's own scripts run, in a folder as the host's root; programs around them are STAND-INS.
"""

import json
import os
import shlex
import subprocess

import pytest
import yaml
from jinja2 import Environment, StrictUndefined

from gpubed.configuration import roles
from support import machines, role_variables
from support.role_tasks import ANSIBLE
from support.shell_host import ShellHost
from support.specs import BACKENDS, sample

ROLE = machines.ROOT / "roles/ssh_mesh"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
OURS = f'# Ansible managed\nrestrict,pty,from="192.0.2.1,192.0.2.2" {KEY} gpubed node-0\n'
OURS_ANYWHERE = f"# Ansible managed\nrestrict,pty {KEY} gpubed node-0\n"


@pytest.fixture
def host(tmp_path):
    there = ShellHost(tmp_path)
    for name in ("systemctl", "sshd"):
        there.program(name)
    there.program("getent", told=False)
    there.program("runuser", 'shift 3\nexec "$@"', told=False)
    (there.home / ".ssh").mkdir()
    return there


def hook(home):
    text = (ROLE / "templates/leave.j2").read_text()
    given = {"gpubed_user": "me", "__ssh_mesh_key": str(home / ".ssh/id_gpubed")}
    given["__ssh_mesh_authorized_keys"] = "/etc/gpubed/authorized_keys.d/%u"
    return (
        Environment(undefined=StrictUndefined)
        .from_string(text)
        .render(ansible_managed="managed", **given)
    )


def put(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def move(host):
    """Run the script that takes over what a former version wrote."""
    text = (ROLE / "files/move-keys").read_text()
    words = ("/etc/ssh/authorized_keys.d", "/etc/gpubed/authorized_keys.d")
    done = host.sh(shlex.join(["sh", "-c", text, "move-keys", *words]))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_clusters_keys_lie_in_a_folder_of_gpubeds_own():
    """An owner's sshd may read /etc/ssh/authorized_keys.d: his keys there are not written over."""
    place = role_variables.value("ssh_mesh", "__ssh_mesh_authorized_keys", "debian-12")
    assert place == "/etc/gpubed/authorized_keys.d/%u"


def test_no_key_of_the_cluster_is_left_on_a_host_that_is_let_go(host):
    owners = [
        put(host.etc / "ssh/authorized_keys.d/me", f"{KEY} me\n"),
        put(host.home / ".ssh/id_ed25519", "mine"),
        put(host.home / ".ssh/id_gpubed.mine", "mine"),
    ]
    for user in ("me", "jupyter"):
        put(host.etc / "gpubed/authorized_keys.d" / user, OURS)
    for name in ("id_gpubed", "id_gpubed.pub"):
        put(host.home / ".ssh" / name, "ours")
    assert host.sh(hook(host.home)).returncode == 0
    assert all(path.exists() for path in owners)
    assert not (host.etc / "gpubed/authorized_keys.d").exists()
    assert sorted(p.name for p in (host.home / ".ssh").iterdir()) == [
        "id_ed25519",
        "id_gpubed.mine",
    ]


def test_an_account_that_is_gone_keeps_no_host_from_leaving(host):
    host.program("getent", "exit 2", told=False)
    host.program("runuser", "exit 1")
    assert host.sh(hook(host.home)).returncode == 0
    assert not [call for call in host.called if call.startswith("runuser")]


@pytest.mark.parametrize("text", [OURS, OURS_ANYWHERE])
def test_keys_that_a_former_version_wrote_are_moved(host, text):
    put(host.etc / "ssh/authorized_keys.d/me", text)
    (host.etc / "gpubed/authorized_keys.d").mkdir()
    assert move(host) == [str(host.etc / "ssh/authorized_keys.d/me")]
    assert (host.etc / "gpubed/authorized_keys.d/me").read_text() == text
    assert not (host.etc / "ssh/authorized_keys.d").exists()
    assert move(host) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# Ansible managed\n",
        f"{KEY} me\n",
        f"# Ansible managed\n{KEY} me\n",
        OURS + f"{KEY} me\n",
        OURS.replace("# Ansible managed", f"{KEY} me"),
    ],
)
def test_a_file_that_is_not_gpubeds_alone_stays_the_owners(host, text):
    owners = put(host.etc / "ssh/authorized_keys.d/me", text)
    (host.etc / "gpubed/authorized_keys.d").mkdir()
    assert move(host) == []
    assert owners.read_text() == text
    assert not list((host.etc / "gpubed/authorized_keys.d").iterdir())


def test_newer_keys_are_not_written_over_by_those_of_a_former_version(host):
    put(host.etc / "ssh/authorized_keys.d/me", OURS)
    newer = put(host.etc / "gpubed/authorized_keys.d/me", OURS_ANYWHERE)
    owners = put(host.etc / "ssh/authorized_keys.d/ann", f"{KEY} ann\n")
    move(host)
    assert newer.read_text() == OURS_ANYWHERE
    assert [path.name for path in owners.parent.iterdir()] == ["ann"]


def test_former_keys_go_when_sshd_has_read_where_the_new_ones_are():
    """Until then nobody could log in from node to node."""
    text = (ROLE / "tasks/main.yml").read_text()
    steps = ("account.yml", "server.yml", "check.yml", "former.yml")
    assert sorted(steps, key=text.index) == list(steps)
    assert "flush_handlers" in (ROLE / "tasks/check.yml").read_text()


@pytest.mark.parametrize("due", ["jupyterlab", "ssh_mesh"])
def test_a_run_that_ends_in_what_a_role_borrows_has_that_role_begun(tmp_path, due):
    """Else its next run finds the files as they should be, and sshd is not told of them."""
    tasks = yaml.safe_load((ROLE / "tasks/account.yml").read_text())
    begins = [task for task in tasks if "gpubed_applied" in task]
    borrows = {"include_role": {"name": "ssh_mesh", "tasks_from": "account"}}
    for path, text in {
        "ssh_mesh/tasks/account.yml": begins,
        "ssh_mesh/tasks/main.yml": [{"import_tasks": "account.yml"}],
        "ssh_mesh/handlers/main.yml": [{"name": "Reload sshd", "debug": {"msg": "sshd is told"}}],
        "jupyterlab/tasks/main.yml": [borrows],
    }.items():
        put(tmp_path / "roles" / path, json.dumps(text))
    told = {
        "gpubed_fingerprints": {"jupyterlab": "1", "ssh_mesh": "1"},
        "gpubed_node_id": "node-0-1",
        "gpubed_state_dir": str(tmp_path),
    }
    play = {"hosts": "localhost", "gather_facts": False, "vars": told}
    play |= {"tasks": [{"include_role": {"name": due}}]}
    put(tmp_path / "play.yml", json.dumps([play]))

    def said():
        done = subprocess.run(
            [ANSIBLE, "-i", "localhost,", "-c", "local", tmp_path / "play.yml"],
            env={**os.environ, "ANSIBLE_CONFIG": str(machines.ROOT / "ansible.cfg")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "sshd is told" not in said()
    record = json.loads((tmp_path / "applied/node-0-1.json").read_text())
    assert {role: how.split()[0] for role, how in record.items()} == {due: "begun"}
    assert "sshd is told" in said()


def sshd_config(**given):
    """Return what holds for everybody, and what for whom the block names."""
    variables = {
        "ansible_managed": "managed",
        "gpubed_user": "me",
        "ssh_mesh_harden": True,
        "ssh_mesh_forwarding": False,
        "ssh_mesh_max_startups_per_source": 500,
        "__ssh_mesh_key_files": [".ssh/authorized_keys", "/etc/gpubed/authorized_keys.d/%u"],
        "__ssh_mesh_ways": ["127.0.0.1:*"],
        **given,
    }
    text = (ROLE / "templates/sshd_config.j2").read_text()
    lines = (
        Environment(undefined=StrictUndefined, trim_blocks=True)
        .from_string(text)
        .render(**variables)
        .splitlines()
    )
    words = [line.split()[0] for line in lines if line and not line.startswith("#")]
    if "Match" not in words:
        return words, []
    assert [line for line in lines if line.startswith("Match")] == ["Match User me", "Match all"]
    assert words[-1] == "Match"
    begin = words.index("Match")
    return words[:begin], words[begin + 1 : -1]


def test_on_a_machine_of_gpubeds_own_the_rules_hold_for_everybody():
    everybody, one = sshd_config(ssh_mesh_whole_host=True)
    assert {"PasswordAuthentication", "KexAlgorithms", "PermitOpen", "LoginGraceTime"} <= set(
        everybody
    )
    assert one == []


def test_on_a_host_that_belongs_to_somebody_its_users_log_in_and_forward_as_before():
    everybody, one = sshd_config(ssh_mesh_whole_host=False)
    assert everybody == ["AuthorizedKeysFile", "PerSourceMaxStartups"]
    assert {"PasswordAuthentication", "X11Forwarding", "PermitOpen", "AllowTcpForwarding"} <= set(
        one
    )
    # None of these may be in such a block.
    assert not {"KexAlgorithms", "MACs", "LoginGraceTime"} & set(one)


def test_without_rules_there_is_no_block():
    given = {"ssh_mesh_harden": False, "ssh_mesh_forwarding": True}
    assert sshd_config(ssh_mesh_whole_host=False, **given) == (
        ["AuthorizedKeysFile", "PerSourceMaxStartups"],
        [],
    )


@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_only_hosts_that_outlive_their_cluster_belong_to_somebody(backend):
    given = roles.inputs(sample(backend, "cpu", "none", 0), "ssh_mesh")
    assert given["ssh_mesh_whole_host"] is (backend != "static")
