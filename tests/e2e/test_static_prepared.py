"""Own hosts as administrators have them: hardened, of a directory, with troubles of their own.

Two real hosts with systemd and sshd. `node-0` is hardened: umask 077 for logins and sudo, and the
account has tcsh. On `node-1` the account has fish; a unit has failed, a package is half-configured,
and `slurm` has a number of its own. The account is called as a directory calls it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpubed.backends.static import host
from gpubed.configuration.configure import environment
from gpubed.core.paths import Project
from gpubed.nodes import allocation
from gpubed.nodes.allocation import Hop
from gpubed.nodes.ssh import SSH
from support.cluster import Cluster, unique

pytestmark = [pytest.mark.testbeds, pytest.mark.e2e, pytest.mark.docker]

USER = "First.Last"
# What both have: the account, with a key and sudo.
ACCOUNT = r"""
set -eu
apt-get update -qq
apt-get install -qq --no-install-recommends tcsh fish > /dev/null
useradd --badname --create-home --shell {shell} {user}
echo '{user} ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/account
sed -i '/^AllowUsers/d' /etc/ssh/sshd_config.d/*
systemctl reload ssh
install -d -m 700 -o {user} -g {user} /home/{user}/.ssh
install -m 600 -o {user} -g {user} ~gpubed/.ssh/authorized_keys /home/{user}/.ssh/
"""
HARDENED = r"""
sed -i 's/^UMASK.*/UMASK 077/' /etc/login.defs
for kind in "" -noninteractive; do
  echo 'session optional pam_umask.so' >> /etc/pam.d/common-session$kind
done
echo 'Defaults umask=0077' > /etc/sudoers.d/umask
"""
TROUBLED = r"""
printf '[Service]\nType=oneshot\nExecStart=/bin/false\n' > /etc/systemd/system/backup.service
systemctl daemon-reload
systemctl start backup.service || true
mkdir -p /tmp/owners/DEBIAN
cat > /tmp/owners/DEBIAN/control << END
Package: owners
Version: 1
Architecture: all
Maintainer: Owner <owner@example.org>
Description: cannot be configured
END
printf '#!/bin/sh\n[ -e /var/lib/owners ]\n' > /tmp/owners/DEBIAN/postinst
chmod 755 /tmp/owners/DEBIAN/postinst
dpkg-deb --build /tmp/owners /tmp/owners.deb > /dev/null
dpkg --install /tmp/owners.deb > /dev/null 2>&1 || true
useradd --system --uid 1234 slurm
"""
MENDED = r"""
systemctl reset-failed backup.service
touch /var/lib/owners
dpkg --configure -a > /dev/null
userdel slurm
"""
PLAY = """
- hosts: all
  become: true
  gather_facts: false
  tasks:
    - ansible.builtin.command: mkdir /opt/by-root
    - ansible.builtin.command: touch /opt/by-root/file
    - ansible.builtin.command: touch /tmp/by-nobody
      become_user: nobody
    - ansible.builtin.command: stat --format %a /opt/by-root /opt/by-root/file /tmp/by-nobody
      register: modes
    - ansible.builtin.file: {path: "{{ item }}", state: absent}
      loop: [/opt/by-root, /tmp/by-nobody]
    - ansible.builtin.assert:
        that: modes.stdout_lines == ['755', '644', '644']
        fail_msg: "{{ modes.stdout_lines }}"
"""

INSTALLER = """
- hosts: all
  become: true
  gather_facts: false
  vars: {gpubed_user: First.Last, gpubed_environment: {}, __python_env_version: "3.11"}
  tasks:
    - ansible.builtin.apt: {name: python3-venv}
    - ansible.builtin.file: {path: /opt/gpubed, state: directory, mode: "0755"}
    - ansible.builtin.include_role: {name: python_env, tasks_from: tools}
    # As under another umask, by an earlier version.
    - ansible.builtin.command: chmod -R go= /opt/gpubed/uv
    - ansible.builtin.include_role: {name: python_env, tasks_from: tools}
    - ansible.builtin.command: /opt/gpubed/uv/bin/uv --version
      become_user: First.Last
"""


class Hosts:
    """Two containers with systemd, and what their user has: a key, known host keys."""

    def __init__(self, ground):
        self.ground = ground
        self.nodes = allocation.load(ground.state / "allocation.json").nodes
        self.key = ground.state / "secrets/id_ed25519"
        self.known = ground.root / "known_hosts"
        lines = [f"{n.control_address} {key}\n" for n in self.nodes for key in n.host_keys]
        self.known.write_text("".join(lines))

    def root(self, number, script):
        """Run a script on a host as its administrator does."""
        id_ = self.nodes[number].id
        done = subprocess.run(
            ["docker", "exec", "-i", id_, "sh"],
            input=script,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def session(self, number):
        one = self.nodes[number]
        hop = Hop(address=one.control_address, user=USER, host_keys=one.host_keys)
        paths = Project(self.ground.root).cluster(self.ground.name)
        return SSH(allocation.host_as_node(hop, one.name), paths, str(self.key))

    @property
    def options(self):
        addresses = [
            {"address": n.control_address, "experiment_address": n.experiment_address}
            for n in self.nodes
        ]
        return {
            "type": "static",
            "user": USER,
            "key": str(self.key),
            "known_hosts": str(self.known),
            "hosts": {"node": addresses},
        }


@pytest.fixture(scope="module")
def hosts(docker, tmp_path_factory):
    """The two hosts, prepared."""
    machine = {"cpus": 1, "memory": "1 GiB"}
    ground = Cluster(
        tmp_path_factory.mktemp("ground"),
        unique("ground"),
        nodes=[{"name": "node", "count": 2, "machine": machine}],
        configure=False,
    )
    try:
        ground.call("up")
        made = Hosts(ground)
        for number, shell in enumerate(("/usr/bin/tcsh", "/usr/bin/fish")):
            made.root(number, ACCOUNT.format(user=USER, shell=shell))
        made.root(0, HARDENED)
        made.root(1, TROUBLED)
        yield made
    finally:
        ground.call("down", "-y")


@pytest.fixture(scope="module")
def cluster(hosts, tmp_path_factory):
    """A cluster of the hosts that is not up yet, and is not configured."""
    networks = json.loads((hosts.ground.state / "allocation.json").read_text())
    subnets = {name: {"subnet": networks[name]["subnet"]} for name in ("control", "experiment")}
    made = Cluster(
        tmp_path_factory.mktemp("own"),
        unique("own"),
        backend=hosts.options,
        nodes=[{"name": "node", "count": 2}],
        networks={**subnets, "experiment": {**subnets["experiment"], "rate": "100 Mbit/s"}},
        services={"slurm": {}},
        configure=False,
    )
    try:
        yield made
    finally:
        made.call("down", "-y")


@pytest.mark.parametrize("number", [0, 1], ids=["tcsh", "fish"])
def test_whatever_the_login_shell_a_host_is_looked_at(hosts, number):
    with hosts.session(number) as ssh:
        found = host.look(ssh)
        assert ssh.run("umask; printf '%s' 'a!b\\\\'").stdout == "0022\na!b\\\\"
    assert (found.user, found.sudo, found.image) == (USER, True, "debian-12")


@pytest.fixture
def play(hosts, tmp_path):
    """A function that runs a playbook on the hardened host."""
    one, inventory, book = hosts.nodes[0], tmp_path / "hosts.json", tmp_path / "play.yml"
    known = {
        "ansible_host": one.control_address,
        "ansible_user": USER,
        "ansible_ssh_private_key_file": str(hosts.key),
        "ansible_ssh_common_args": f"-o UserKnownHostsFile={hosts.known}",
    }
    inventory.write_text(json.dumps({"all": {"hosts": {"node-0": known}}}))

    def run(text, strategy="gpubed_linear"):
        book.write_text(text)
        return subprocess.run(
            [Path(sys.executable).with_name("ansible-playbook"), "-i", inventory, book],
            env={**os.environ, **environment(), "ANSIBLE_STRATEGY": strategy},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.mark.parametrize("strategy", ["gpubed_linear", "linear"])
def test_the_hosts_umask_decides_no_modes(hosts, play, strategy):
    with hosts.session(0) as ssh:
        assert ssh.run("sudo -n sh -c umask").stdout == "0077\n", "the host is hardened"
    done = play(PLAY, strategy)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_installer_that_only_root_can_read_is_made_again(play):
    done = play(INSTALLER)
    assert done.returncode == 0, done.stdout + done.stderr


def test_troubles_of_the_owner_are_named_before_anything_changes(cluster, hosts):
    said = cluster.call("up", rc=3).stderr
    for words in (
        "node-1",
        "units of its owner that have failed: backup.service",
        "sudo systemctl reset-failed backup.service",
        "packages of its owner that are not configured: owners",
        "sudo dpkg --configure -a",
        "the account slurm has the number 64030 on node-0, 1234 on node-1",
        "usermod --uid",
    ):
        assert words in said
    findings = cluster.json("doctor", rc=3)["findings"]
    assert {f["id"] for f in findings if not f["ok"]} == {"static.node-1", "static.accounts"}
    obstacles = cluster.json("plan", rc=4)["obstacles"]
    assert sorted(obstacles) == sorted(f["message"] for f in findings if not f["ok"])
    for number in (0, 1):
        assert hosts.root(number, "ls /etc/gpubed/owner.json 2> /dev/null || true") == ""


def test_requiretty_is_named_with_what_lifts_it(cluster, hosts):
    hosts.root(0, "echo 'Defaults requiretty' > /etc/sudoers.d/tty")
    try:
        [wrong] = [
            f
            for f in cluster.json("doctor", rc=3)["findings"]
            if f["id"] == "static.node-0" and not f["ok"]
        ]
    finally:
        fix = wrong["fix"].partition("write: ")[2]
        hosts.root(0, f"echo '{fix}' > /etc/sudoers.d/z && chmod 440 /etc/sudoers.d/* && visudo -c")
    assert fix == f"Defaults:{USER} !requiretty"
    assert "must have a tty" in wrong["message"]
    with hosts.session(0) as ssh:
        assert host.look(ssh).sudo


def test_mended_hosts_become_nodes_and_are_let_go(cluster, hosts):
    hosts.root(1, MENDED)
    assert cluster.json("up")["state"] == "ready"
    for number in (0, 1):
        assert USER in hosts.root(number, "cat /etc/gpubed/release")
    assert cluster.node("node-1", "id -un") == f"{USER}\n"
    assert cluster.json("down", "-y")["survivors"] == []
