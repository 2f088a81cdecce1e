"""What is undone on an own host when its cluster lets it go: services, holds, what roles left.

The programs of the host are STAND-INS; the scripts are those that run there.
"""

import pytest

from gpubed.backends.static import membership
from gpubed.core.errors import GpubedError
from gpubed.nodes.ssh import CommandFailed
from support.shell_host import ShellHost

pytestmark = pytest.mark.process

UUID = "0f0e"
OURS = f"ssh-ed25519 BBBB gpubed:{UUID}\n"
OWNERS = "ssh-ed25519 AAAA owner\n"


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


def test_a_host_that_joined_another_cluster_meanwhile_is_not_let_go(host):
    """It was looked at, and a question was answered, before."""
    owner = {"uuid": "1a1b", "cluster": "theirs", "node": "node-0", "id": "node-0-2"}
    membership.admit(host, owner, "ssh-ed25519 CCCC")
    (host.etc / "systemd/system/gpubed-health.timer").write_text("[Timer]\n")
    with pytest.raises(GpubedError, match="node of another cluster meanwhile") as caught:
        membership.release(host, UUID)
    assert "the same command again leaves it alone" in caught.value.hint
    assert host.called == []
    assert "1a1b" in (host.etc / "gpubed/owner.json").read_text()
    assert (host.home / ".ssh/authorized_keys").read_text() == "ssh-ed25519 CCCC gpubed:1a1b\n"


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


@pytest.mark.parametrize("by_hand", [True, False])
def test_down_and_the_command_for_a_host_that_comes_back_undo_the_same(back, by_hand):
    if by_hand:
        done = back.sh(membership.by_hand(UUID))
        assert done.returncode == 0, done.stderr
    else:
        membership.release(back, UUID)
    assert set(back.called) == {
        "systemctl disable --now gpubed-health.timer",
        "nft delete table inet gpubed",
        "apt-mark unhold nvidia-driver-cuda",
    }
    assert (back.home / ".ssh/authorized_keys").is_symlink()
    assert (back.home / "kept").read_text() == OWNERS
    assert sorted(path.name for path in (back.etc / "gpubed").iterdir()) == ["leave.d"]


def test_a_host_that_is_another_clusters_by_now_is_not_let_go_by_hand(back):
    done = back.sh(membership.by_hand("1a1b"))
    assert done.returncode != 0
    assert "is no node of cluster 1a1b" in done.stderr
    assert back.called == []
    assert (back.etc / "gpubed/owner.json").exists()
