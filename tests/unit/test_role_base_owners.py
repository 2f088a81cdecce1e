"""On own hosts role base gives the owner's names back when the cluster lets the host go.

The role's own tasks and hook run; programs of the host are STAND-INS.
"""

import os
import subprocess

import pytest

from support.role_tasks import play

HOSTS = "127.0.0.1 localhost\n192.0.2.9 files.example.org files node-1\n# the owner's\n"
NODES = [
    {"name": f"node-{index}", "experiment_address": None, "control_address": f"192.0.2.{7 + index}"}
    for index in range(2)
]


class Host:
    def __init__(self, root):
        self.root, self.hosts, self.noted = root, root / "hosts", root / "names"
        self.hook = root / "leave.d/base"
        self.hosts.write_text(HOSTS)

    def up(self, name):
        done = play(
            self.root,
            "base",
            "names",
            programs={"hostnamectl": "exit 0", "hostname": "exit 0"},
            inventory_hostname=name,
            gpubed_nodes=NODES,
            ansible_managed="managed",
            facts={"hostname": "owners", "nodename": "owners.example.org"},
            __base_hosts_path=str(self.hosts),
            __base_names=str(self.noted),
            __base_leaving=str(self.hook),
        )
        assert done.code == 0, done.said

    def leave(self, name, *words):
        """Let the host go, by the name that it has by now; return what is called."""
        folder = self.root / "programs"
        folder.mkdir(exist_ok=True)
        calls = self.root / "calls"
        for program, does in (("hostname", f"echo {name}"), ("hostnamectl", f"echo $* >>{calls}")):
            (folder / program).write_text(f"#!/bin/sh\n# STAND-IN\n{does}\n")
            (folder / program).chmod(0o755)
        path = f"{folder}{os.pathsep}{os.environ['PATH']}"
        subprocess.run(["sh", self.hook, *words], env={"PATH": path}, check=True)
        return calls.read_text() if calls.exists() else ""


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


def test_the_owners_names_come_back(host):
    host.up("node-0")
    assert "files.example.org" not in host.hosts.read_text()  # it would name a node otherwise
    host.up("node-0")
    assert host.leave("node-0", "stays") == ""
    assert host.leave("node-0") == "set-hostname owners.example.org\n"
    assert sorted(host.hosts.read_text().splitlines()) == sorted(HOSTS.splitlines())
    assert not host.hook.exists()
    assert not host.noted.exists()


def test_a_name_that_the_owner_gave_since_stays(host):
    host.up("node-0")
    with host.hosts.open("a") as file:
        file.write("192.0.2.10 printer\n")
    assert host.leave("renamed") == ""
    assert "192.0.2.10 printer\n" in host.hosts.read_text()


def test_a_block_without_its_end_keeps_what_follows(host):
    host.up("node-0")
    damaged = host.hosts.read_text().replace("# END gpubed\n", "192.0.2.10 printer\n")
    host.hosts.write_text(damaged)
    host.leave("node-0")
    assert host.hosts.read_text().startswith(damaged)


def test_a_name_of_gpubeds_is_not_taken_for_the_owners(host):
    host.hosts.write_text(f"{HOSTS}# BEGIN gpubed\n192.0.2.7 node-0\n# END gpubed\n")
    host.up("node-0")
    assert host.leave("node-0") == ""


@pytest.mark.parametrize(
    ("kept", "runs", "chrony"),
    [
        ("auto", "", True),
        ("auto", "ntpsec.service loaded active running Network Time Service", False),
        ("chrony", "ntpsec.service loaded active running Network Time Service", True),
    ],
)
def test_a_time_service_of_the_owners_stays(tmp_path, kept, runs, chrony):
    """To install chrony would remove it, and nothing would bring it back."""
    done = play(
        tmp_path,
        "base",
        "preflight",
        programs={"systemctl": f"echo '{runs}'"},
        tell=["__base_chrony", "__base_timekeeper"],
        facts={"virtualization_type": "kvm", "base_time_sync": kept},
        __base_problems=[],
    )
    assert done.code == 0, done.said
    assert done.told == {
        "__base_chrony": chrony,
        "__base_timekeeper": "ntpsec.service" if runs else "",
    }
