"""Role ssh_mesh on a host that belongs to somebody: whose keys are where, and what is left.

The role's own scripts run, in a folder as the host's root; programs around them are STAND-INS.
"""

import shlex

import pytest
from jinja2 import Environment, StrictUndefined

from support import machines
from support.shell_host import ShellHost

pytestmark = pytest.mark.process

ROLE = machines.ROOT / "roles/ssh_mesh"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
TAG = "gpubed-role:a1"
OURS = f"restrict,pty {KEY} gpubed node-0 {TAG}"


@pytest.fixture
def host(tmp_path):
    there = ShellHost(tmp_path)
    for name in ("systemctl", "sshd"):
        there.program(name)
    there.program("getent", told=False)
    there.program("runuser", 'shift 3\nexec "$@"', told=False)
    (there.home / ".ssh").mkdir()
    return there


def put(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def accept(host, lines, file=".ssh/authorized_keys", *, may_root=False):
    """Run the script that lets keys into an account, with what sshd says of its files."""
    text = (ROLE / "files/accept-keys").read_text().replace("/usr/sbin/sshd", "sshd")
    host.program("sshd", f"echo 'authorizedkeysfile {file} .ssh/other'", told=False)
    host.program("getent", f"echo me:x:1:1::{host.home}:/bin/sh", told=False)
    words = ("accept-keys", "me", TAG, "root" if may_root else "")
    given = shlex.quote("".join(f"{line}\n" for line in lines))
    return host.sh(f"printf %s {given} | {shlex.join(['sh', '-c', text, *words])}")


def test_keys_stand_beside_the_accounts_own(host):
    """The last line has no end, and others' stay in their order."""
    keys = put(host.home / ".ssh/authorized_keys", f"{KEY} mine\n{OURS} old {TAG}\n{KEY} too")
    keys.chmod(0o640)
    done = accept(host, [OURS])
    assert (done.returncode, done.stdout) == (0, f"{keys}\n"), done.stderr
    assert keys.read_text() == f"{KEY} mine\n{KEY} too\n{OURS}\n"
    assert keys.stat().st_mode & 0o777 == 0o640
    assert accept(host, [OURS]).stdout == ""
    assert [path.name for path in keys.parent.iterdir()] == ["authorized_keys"]


def test_a_file_of_keys_is_made_for_the_account_alone(host):
    (host.home / ".ssh").rmdir()
    assert accept(host, [OURS]).returncode == 0
    assert (host.home / ".ssh").stat().st_mode & 0o777 == 0o700
    assert (host.home / ".ssh/authorized_keys").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("file", ["/etc/ssh/keys/%u", "%h/.keys", ".ssh/k%%"])
def test_keys_stand_where_sshd_looks_for_them(host, file):
    """Outside of a home only root writes, and everybody may read: sshd does so as the account."""
    done = accept(host, [OURS], file.replace("/etc/", f"{host.etc}/"))
    assert done.returncode == 0, done.stderr
    place = file.replace("%u", "me").replace("%h/", "").replace("%%", "%")
    at = host.etc / place.removeprefix("/etc/") if place[0] == "/" else host.home / place
    assert at.read_text() == f"{OURS}\n"
    assert at.stat().st_mode & 0o777 == (0o644 if place[0] == "/" else 0o600)


def test_root_follows_no_link_that_an_account_put_there(host):
    """What may not become root writes as itself, and cannot there."""
    host.program("runuser", 'echo "as $2: $4" >&2\nshift 3\nexec "$@"', told=False)
    (host.home / ".ssh/authorized_keys").symlink_to(host.etc / "shadow")
    assert "as me: sh" in accept(host, [OURS]).stderr


def sshd_config(**given):
    """Return the keywords that are set."""
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
    return {line.split()[0] for line in lines if line and not line.startswith("#")}


def test_on_a_machine_of_gpubeds_own_the_rules_hold_for_everybody():
    given = {"PasswordAuthentication", "KexAlgorithms", "PermitOpen", "LoginGraceTime"}
    assert given <= sshd_config()
    assert sshd_config(ssh_mesh_harden=False, ssh_mesh_forwarding=True) == {
        "AuthorizedKeysFile",
        "PerSourceMaxStartups",
        "LoginGraceTime",
    }
