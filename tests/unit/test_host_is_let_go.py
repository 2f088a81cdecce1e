"""What is undone on an own host when its cluster lets it go: services, holds, what roles left.

The programs of the host are STAND-INS; the scripts are those that run there.
"""

import re

import pytest
import yaml
from jinja2 import Environment, StrictUndefined

from gpubed import progress
from gpubed.backends.static import membership
from gpubed.ssh import CommandFailed
from support import machines
from support.shell_host import ShellHost

ROLES = machines.ROOT / "roles"
NOTED = ("pin", "unattended", "noted", "brought", "leaving")
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


def leave(folder):
    """The hook of role nvidia_driver, and the files that it takes away."""
    files = {f"__nvidia_driver_{name}": str(folder / name) for name in NOTED}
    text = (ROLES / "nvidia_driver/templates/leave.j2").read_text()
    hook = Environment(undefined=StrictUndefined).from_string(text)
    return hook.render(ansible_managed="managed", **files), [folder / name for name in NOTED]


def test_the_driver_stays_and_is_not_held_any_more(host, tmp_path):
    hook, files = leave(tmp_path)
    for path in files:
        path.write_text("nvidia-driver-cuda\nnvidia-kernel-open-dkms\n")
    host.sh(hook)
    assert host.called == ["apt-mark unhold nvidia-driver-cuda nvidia-kernel-open-dkms"]
    assert not [path for path in files if path.exists()]


def test_services_of_the_cluster_end_and_hooks_of_roles_run(host):
    units = host.etc / "systemd/system"
    for name in ("gpubed-health.timer", "gpubed-health.service"):
        (units / name).write_text("[Service]\n")
    (units / "jupyterlab.service").write_text(f"ExecStart=lab --config={host.etc}/gpubed/x\n")
    (host.etc / "gpubed/leave.d/driver").write_text("apt-mark unhold nvidia-driver-cuda\n")
    membership.release(host, UUID)
    assert set(host.called) == {
        "systemctl disable --now gpubed-health.timer",
        "systemctl disable --now gpubed-health.service",
        "systemctl disable --now jupyterlab.service",
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
    for path in (p for kind in ("tasks", "vars") for p in ROLES.glob(f"*/{kind}/**/*.yml")):
        text = path.read_text()
        found |= set(_PLACED.findall(text))
        if '/etc/systemd/system/{{ item }}"' in text:
            found |= {name for task in _tasks(yaml.safe_load(text)) for name in _looped(task)}
    return found


def _tasks(tasks):
    for task in tasks:
        yield task
        for part in ("block", "rescue", "always"):
            yield from _tasks(task.get(part, ()))


def _looped(task):
    does = next((v for k, v in task.items() if k.startswith("ansible.builtin.")), None)
    there = isinstance(does, dict) and str(does.get("dest", ""))
    return task["loop"] if there == "/etc/systemd/system/{{ item }}" else ()


def test_the_units_are_those_that_roles_install():
    assert installed_units() == set(membership.UNITS)


def test_every_unit_that_a_role_has_is_listed():
    files = (p for kind in ("templates", "files") for p in ROLES.glob(f"*/{kind}/*"))
    names = {path.name.removesuffix(".j2") for path in files}
    units = {name for name in names if name.endswith((".service", ".timer", ".socket", ".path"))}
    assert units == set(membership.UNITS)


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


def test_a_host_that_is_let_go_by_half_says_whose_it_was(host):
    mark = host.etc / "gpubed/owner.json"
    mark.write_text(UUID)
    (host.etc / "gpubed/leave.d/role").write_text("exit 1\n")
    with pytest.raises(CommandFailed) as caught:
        membership.release(host, UUID)
    assert mark.exists()
    assert caught.value.result.stderr == f"{host.etc}/gpubed/leave.d/role failed\n"


def test_what_a_hook_says_of_what_stays_is_told(host):
    (host.etc / "gpubed/leave.d/role").write_text("echo removed a file; echo note: yours stays\n")
    notes = []
    progress.tell(lambda event: notes.append(event["message"]))
    membership.release(host, UUID)
    progress.tell(None)
    assert notes == ["node-0: yours stays"]


def test_the_commands_for_a_host_that_comes_back_keep_a_link(host):
    kept = host.home / "kept"
    kept.write_text(OWNERS + OURS)
    (host.home / ".ssh").mkdir()
    (host.home / ".ssh/authorized_keys").symlink_to(kept)
    (host.etc / "gpubed/owner.json").write_text(UUID)
    # Who types it is asked by sudo, which takes no option here.
    host.program("sudo", 'exec "$@"', told=False)
    assert host.sh(membership.by_hand(UUID)).returncode == 0
    assert (host.home / ".ssh/authorized_keys").is_symlink()
    assert kept.read_text() == OWNERS
