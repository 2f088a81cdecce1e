"""What is undone on an own host when its cluster lets it go: services, holds, what roles left.

The programs of the host are STAND-INS; the scripts are those that run there.
"""

import fcntl
import os
import re
from types import SimpleNamespace

import pytest
import yaml

from gpubed.backends.static import membership
from gpubed.core import progress
from gpubed.core.errors import GpubedError
from gpubed.nodes.ssh import CommandFailed, CommandResult, CommandTimedOut
from support import machines
from support.shell_host import ShellHost

pytestmark = pytest.mark.process

ROLES = machines.ROOT / "roles"
UUID = "0f0e"
OURS = f"ssh-ed25519 BBBB gpubed:{UUID}\n"
OWNERS = "ssh-ed25519 AAAA owner\n"
_PLACED = re.compile(
    r"/etc/systemd/system/([\w@-]+\.(?:service|timer|socket|path|mount|target)\b)(?!\.d)"
)


@pytest.fixture
def host(tmp_path):
    there = ShellHost(tmp_path)
    for name in ("apt-mark", "systemctl", "nft"):
        there.program(name)
    return there


def test_services_of_the_cluster_end_and_hooks_of_roles_run(host):
    units = host.etc / "systemd/system"
    for name in ("gpubed-health.timer", "gpubed-health.service"):
        (units / name).write_text("[Service]\n")
    (units / "jupyterlab.service").write_text(f"ExecStart=lab --config={host.etc}/gpubed/x\n")
    (host.etc / "gpubed/leave.d/driver").write_text("apt-mark unhold nvidia-driver-cuda\n")
    membership.release(host, UUID)
    assert set(host.called) == {
        "systemctl disable --now gpubed-health.service gpubed-health.timer jupyterlab.service",
        "nft delete table inet gpubed",
        "apt-mark unhold nvidia-driver-cuda",
    }


def test_units_of_the_owner_go_on_whatever_they_mention(host):
    for name, text in {
        "gpubed-runner.service": "[Service]\nExecStart=/opt/gpubed-runner\n",
        "gpubed-runner.timer": "[Timer]\n",
        "backup.service": "# saves what gpubed writes\n",
        "jupyterlab.service": "# not gpubed's\n[Service]\nExecStart=/opt/lab\n",
    }.items():
        (host.etc / "systemd/system" / name).write_text(text)
    membership.release(host, UUID)
    assert host.called == ["nft delete table inet gpubed"]


def installed_units():
    """Names of the units that roles put under /etc/systemd/system, by what their files say."""
    found = set()
    for role in ROLES.iterdir():
        known = {}
        for path in role.glob("vars/*.yml"):
            known |= yaml.safe_load(path.read_text()) or {}
        for path in (p for kind in ("tasks", "vars") for p in role.glob(f"{kind}/**/*.yml")):
            text = _named(path.read_text(), known)
            found |= set(_PLACED.findall(text))
            if '/etc/systemd/system/{{ item }}"' in text:
                tasks = _tasks(yaml.safe_load(text))
                found |= {_named(name, known) for task in tasks for name in _looped(task, known)}
    return found


def _named(text, known):
    """A text with the role's variables that are a text, called by name, in their places."""
    texts = {name: value for name, value in known.items() if isinstance(value, str)}
    return re.sub(r"\{\{ (__\w+) \}\}", lambda one: texts.get(one[1], one[0]), text)


def _tasks(tasks):
    for task in tasks:
        yield task
        for part in ("block", "rescue", "always"):
            yield from _tasks(task.get(part, ()))


def _looped(task, known):
    does = next((v for k, v in task.items() if k.startswith("ansible.builtin.")), None)
    there = isinstance(does, dict) and str(does.get("dest", ""))
    if there != "/etc/systemd/system/{{ item }}":
        return ()
    looped = task["loop"]
    return looped if isinstance(looped, list) else known[looped.strip("{} ")]


def test_the_units_are_those_that_roles_install():
    """`down` knows a unit by its file, in `templates` or `files` of its role."""
    assert installed_units() == set(membership.units())


def test_the_key_goes_and_a_link_to_the_keys_stays(host):
    kept = host.etc / "ssh/keys/me"
    kept.parent.mkdir(parents=True)
    kept.write_text(OWNERS + OURS)
    (host.home / ".ssh").mkdir()
    (host.home / ".ssh/authorized_keys").symlink_to(kept)
    mark = host.etc / "gpubed/owner.json"
    mark.write_text(UUID)
    membership.release(host, UUID)
    assert (host.home / ".ssh/authorized_keys").is_symlink()
    assert kept.read_text() == OWNERS
    assert not mark.exists()


@pytest.mark.parametrize(("stays", "told"), [(True, "stays"), (False, "")])
def test_hooks_are_told_where_the_host_becomes_another_node(host, tmp_path, stays, told):
    (host.etc / "gpubed/leave.d/role").write_text(f'echo "$*" >{tmp_path}/told\n')
    membership.release(host, UUID, stays=stays)
    assert (tmp_path / "told").read_text() == f"{told}\n"


def test_a_host_that_is_let_go_by_half_says_whose_it_was(host):
    mark = host.etc / "gpubed/owner.json"
    mark.write_text(UUID)
    (host.etc / "gpubed/leave.d/role").write_text("exit 1\n")
    with pytest.raises(CommandFailed) as caught:
        membership.release(host, UUID)
    assert mark.exists()
    assert caught.value.result.stderr == f"{host.etc}/gpubed/leave.d/role failed\n"


def test_a_host_has_the_time_that_its_services_need_to_end():
    """A database's unit is given 15 minutes by its package, any other 90 s by systemd."""
    given = []

    def run(command, script, timeout):
        given.append(timeout)
        raise CommandTimedOut("node-0", script, CommandResult("", "", -1, timeout))

    there = SimpleNamespace(name="node-0", control_address="192.0.2.7")
    with pytest.raises(GpubedError) as caught:
        membership.release(SimpleNamespace(node=there, run=run), UUID)
    assert given[0] > 15 * 60 + 90
    assert (
        caught.value.message == "node-0 (192.0.2.7) is not let go after 20 min, and goes on at it"
    )
    assert "systemctl list-jobs" in caught.value.hint


def test_who_comes_while_a_host_is_being_let_go_waits(host, monkeypatch):
    monkeypatch.setattr(membership, "_PATIENCE", 0)
    held = os.open(host.etc / "gpubed", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(GpubedError, match="is kept busy") as caught:
        membership.release(host, UUID)
    os.close(held)
    assert caught.value.hint
    assert host.called == []


def test_a_host_that_joined_another_cluster_meanwhile_is_not_let_go(host):
    """It was looked at, and a question was answered, before."""
    owner = {"uuid": "1a1b", "cluster": "theirs", "node": "node-0", "id": "node-0-2"}
    membership.admit(host, owner, "ssh-ed25519 CCCC")
    (host.etc / "systemd/system/gpubed-health.timer").write_text("[Timer]\n")
    with pytest.raises(GpubedError, match="node of another cluster meanwhile") as caught:
        membership.release(host, UUID)
    assert caught.value.hint == "the same command again leaves it alone"
    assert host.called == []
    assert "1a1b" in (host.etc / "gpubed/owner.json").read_text()
    assert (host.home / ".ssh/authorized_keys").read_text() == "ssh-ed25519 CCCC gpubed:1a1b\n"


def test_what_a_hook_says_of_what_stays_is_told(host):
    (host.etc / "gpubed/leave.d/role").write_text("echo removed a file; echo note: yours stays\n")
    notes = []
    progress.tell(lambda event: notes.append(event["message"]))
    membership.release(host, UUID)
    progress.tell(None)
    assert notes == ["node-0: yours stays"]


@pytest.fixture
def back(host):
    """A host that was silent at `down` and comes back, with all that gpubed keeps there."""
    kept = host.home / "kept"
    kept.write_text(OWNERS)
    (host.home / ".ssh").mkdir()
    (host.home / ".ssh/authorized_keys").symlink_to(kept)
    owner = {"uuid": UUID, "cluster": "lab", "node": "node-0", "id": "node-0-1"}
    membership.admit(host, owner, "ssh-ed25519 BBBB")
    assert kept.read_text() == OWNERS + OURS
    (host.etc / "systemd/system/gpubed-health.timer").write_text("[Timer]\n")
    (host.etc / "gpubed/leave.d/driver").write_text("apt-mark unhold nvidia-driver-cuda\n")
    # Who types it is asked by sudo, and has another home.
    host.program("sudo", '[ "$1" != -n ] || shift\nexport HOME=/root\nexec "$@"', told=False)
    return host


LET_GO = {
    "systemctl disable --now gpubed-health.timer",
    "nft delete table inet gpubed",
    "apt-mark unhold nvidia-driver-cuda",
}


def test_one_command_lets_a_host_go_that_comes_back(back):
    done = back.sh(membership.by_hand(UUID))
    assert done.returncode == 0, done.stderr
    assert set(back.called) == LET_GO
    assert (back.home / ".ssh/authorized_keys").is_symlink()
    assert (back.home / "kept").read_text() == OWNERS
    assert sorted(path.name for path in (back.etc / "gpubed").iterdir()) == ["leave.d"]


def test_down_undoes_the_same_and_leaves_no_program_behind(back):
    membership.release(back, UUID)
    assert set(back.called) == LET_GO
    assert sorted(path.name for path in (back.etc / "gpubed").iterdir()) == ["leave.d"]


def test_a_host_that_is_another_clusters_by_now_is_not_let_go_by_hand(back):
    done = back.sh(membership.by_hand("1a1b"))
    assert done.returncode != 0
    assert "is no node of cluster 1a1b" in done.stderr
    assert back.called == []
    assert (back.etc / "gpubed/owner.json").exists()
