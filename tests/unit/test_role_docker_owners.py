"""On own hosts role docker undoes what it did, and ends no container of the owner's.

The role's own tasks, scripts and hook run, in a folder as the host's root; programs that would
change this machine are STAND-INS.
"""

import json
import os
import subprocess
import sys

import pytest

from support import machines
from support.role_tasks import play
from support.shell_host import ShellHost

ROLE = machines.ROOT / "roles/docker"
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.geteuid() != 0, reason="tasks give files to root"),
]
RESTARTED = ["systemctl try-restart docker.service"]
A_CLUSTER, ANOTHER = "0f0e", "a1b2"
OWNERS = '{"owner": 1}'


class Docker(ShellHost):
    """A host with Docker's files, on which the role and its hook run, time and again.

    Attributes:
        settings: Docker's `daemon.json`.
        before: What the role keeps of it.
        leaving: The hook.
        stamp: Says that the role brought Docker.
        record: What was there before.
        group: The line of the group docker; need not be there.
    """

    def __init__(self, folder):
        super().__init__(folder / "host")
        self.root = folder
        self.files = {
            "__docker_settings": self.etc / "docker/daemon.json",
            "__docker_before": self.etc / "docker/daemon.json.before-gpubed",
            "__docker_leaving": self.etc / "gpubed/leave.d/docker",
            "__docker_stamp": folder / "notes/docker",
            "__docker_record": folder / "notes/docker-before",
            "__docker_none": self.etc / "docker/daemon.json.none",
            "__docker_written": folder / "notes/docker-written",
            "__docker_packages_note": folder / "notes/docker-packages",
            "__docker_bridges": folder / "notes/docker-bridges",
            "__docker_process": folder / "docker.pid",
        }
        self.settings, self.before, self.leaving, self.stamp, self.record, self.none = list(
            self.files.values()
        )[:6]
        self.group = folder / "group"
        self.stamp.parent.mkdir()
        self.settings.parent.mkdir()
        self.programs = {
            "systemctl": "",
            "docker": "",
            "apt-get": "",
            "dpkg-query": "shift 2; for one; do echo $one installed; done",
            "groupdel": "",
            "iptables": "echo '-P FORWARD ACCEPT'",
            "iptables-save": "",
            "iptables-restore": "cat >/dev/null",
            "ip": "exit 1",
            "getent": f"cat {self.group} 2>/dev/null || exit 2",
            "gpasswd": f'case $1 in --add) echo "docker:x:990:$2" ;; *) echo docker:x:990: ;; esac'
            f" >{self.group}",
        }
        for name, does in self.programs.items():
            self.program(name, does, told=name in ("systemctl", "gpasswd"))

    def play(self, entry, uuid=A_CLUSTER, check=False, **variables):
        names = {name: str(path) for name, path in self.files.items()}
        given = {"gpubed_uuid": uuid, "gpubed_user": "ann", "gpubed_cluster": "own"}
        return play(
            self.root,
            "docker",
            entry,
            programs=self.programs,
            check=check,
            respawns=entry in ("absent", "removal"),  # apt
            ansible_managed="m",
            **given | names | variables,
        )

    def looked(self, wanted):
        files = [self.files[f"__docker_{name}"] for name in ("settings", "written", "process")]
        script = ROLE / "files/restart_costs.py"
        return subprocess.run(
            [sys.executable, script, *files, json.dumps(wanted)],
            env={"PATH": f"{self.root / 'host/bin'}{os.pathsep}{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    def configure(self, uuid=A_CLUSTER, **wanted):
        self.program("systemctl", "exit 3", told=False)  # no daemon runs
        looked = {"stdout": self.looked(wanted)}
        self.program("systemctl")
        played = self.play("settings", uuid, __docker_daemon=wanted, __docker_looked=looked)
        assert played.code == 0, played.said
        return played

    def bring(self, uuid=A_CLUSTER):
        """Do what install.yml does where no Docker was."""
        self.stamp.write_text(f"cluster {uuid}\n")

    def leave(self):
        text = self.leaving.read_text().replace(str(self.etc), "/etc")
        return self.sh(text)


@pytest.fixture
def docker(tmp_path):
    return Docker(tmp_path)


def test_the_settings_of_the_owners_docker_come_back(docker):
    docker.settings.write_text(OWNERS)
    docker.configure(ours=1)
    docker.configure(ours=2)
    assert json.loads(docker.settings.read_text()) == {"ours": 2, "owner": 1}
    assert docker.leave().returncode == 0
    assert docker.called == RESTARTED
    assert docker.settings.read_text() == OWNERS
    assert not docker.before.exists()
    assert not docker.leaving.exists()
    assert list(docker.record.parent.iterdir()) == []
    # The next cluster begins anew.
    docker.settings.write_text('{"owner": 2}')
    docker.configure(ANOTHER, ours=3)
    assert docker.before.read_text() == '{"owner": 2}'


def test_a_docker_that_the_role_brought_stops(docker):
    """The host's ledger removes it."""
    docker.configure(ours=1)
    docker.bring()
    docker.leave()
    assert "systemctl stop docker.socket docker.service" in docker.called
    assert json.loads(docker.settings.read_text()) == {"ours": 1}
    # It is the owner's from then on, whatever he changes, or does not.
    assert not docker.stamp.exists()
    left = docker.settings.read_text()
    docker.configure(ANOTHER, ours=2)
    docker.leave()
    assert docker.settings.read_text() == left


def test_a_docker_that_another_cluster_brought_is_the_owners(docker):
    """The host did not answer when that cluster went down."""
    docker.configure(ANOTHER, **{"data-root": "/data", "live-restore": True})
    docker.bring(ANOTHER)
    left = docker.settings.read_text()
    docker.configure(**{"data-root": "/var/lib/docker", "live-restore": True})
    assert docker.before.read_text() == left
    docker.leave()
    assert docker.settings.read_text() == left


def removal(docker, uuid=A_CLUSTER):
    """Say what switching Docker off would do, without doing it."""
    return docker.play("absent", uuid, check=True, docker_enabled=False)


@pytest.mark.parametrize(("whose", "removed"), [(A_CLUSTER, True), (ANOTHER, False), ("", True)])
def test_only_a_docker_of_the_cluster_is_removed(docker, whose, removed):
    """The stamp of a former version names no cluster, and is empty."""
    docker.stamp.write_text(f"cluster {whose}\n" if whose else "")
    played = removal(docker)
    assert played.code == 0, played.said
    assert ("base : Remove the packages that came with the role" in played.tasks) is removed


def test_the_hook_of_another_cluster_is_not_run(docker):
    docker.settings.write_text(OWNERS)
    docker.configure(ANOTHER, ours=1)
    played = docker.play("absent", docker_enabled=False)
    assert played.code == 0, played.said
    assert json.loads(docker.settings.read_text()) == {"ours": 1, "owner": 1}
    assert docker.before.read_text() == OWNERS
    assert not docker.leaving.exists()
    assert not any("systemctl" in call for call in played.calls)


def test_settings_that_the_owner_changed_stay(docker):
    docker.settings.write_text(OWNERS)
    docker.configure(ours=1)
    docker.settings.write_text('{"ours": 1, "mine": 2}')
    left = docker.leave()
    assert docker.settings.read_text() == '{"ours": 1, "mine": 2}'
    assert docker.before.read_text() == OWNERS
    assert "daemon.json was changed since gpubed wrote it, and stays" in left.stdout
    assert docker.called == []
    # The next cluster keeps what is there then.
    docker.configure(ANOTHER, ours=2)
    docker.leave()
    assert docker.settings.read_text() == '{"ours": 1, "mine": 2}'


def test_a_host_that_goes_down_while_docker_restarts_keeps_what_came_back(docker):
    docker.settings.write_text(OWNERS)
    docker.configure(ours=1)
    docker.program("systemctl", "kill -9 $PPID")
    assert docker.leave().returncode != 0
    docker.program("systemctl")
    assert (docker.settings.exists(), docker.before.exists()) == (True, False)
    docker.settings.write_text('{"owner": 2}')
    docker.leave()
    assert docker.settings.read_text() == '{"owner": 2}'


def test_settings_that_are_a_link_are_one_again(docker):
    kept = docker.etc / "docker/kept.json"
    kept.write_text(OWNERS)
    docker.settings.symlink_to("kept.json")
    docker.configure(ours=1)
    assert kept.read_text() == OWNERS
    docker.leave()
    assert str(docker.settings.readlink()) == "kept.json"


@pytest.mark.parametrize(
    ("was", "now", "undone"),
    [
        ("", "ann", ["gpasswd --delete ann docker"]),
        ("ann", "", ["gpasswd --add ann docker"]),  # user_access: false
        ("ann", "ann", []),
    ],
)
def test_who_could_use_docker_before_can_again(docker, was, now, undone):
    docker.group.write_text(f"docker:x:990:{was}\n")
    docker.configure(ours=1)
    docker.group.write_text(f"docker:x:990:{now}\n")
    docker.leave()
    assert docker.group.read_text() == f"docker:x:990:{was}\n"
    assert [call for call in docker.called if "gpasswd" in call] == undone


def test_a_group_that_came_with_docker_is_left(docker):
    docker.configure(ours=1)
    docker.bring()
    docker.group.write_text("docker:x:990:bob,ann\n")
    docker.leave()
    assert [call for call in docker.called if "gpasswd" in call] == ["gpasswd --delete ann docker"]


def test_only_what_came_with_docker_is_removed(docker):
    """containerd serves Kubernetes, registries' certificates another Docker."""
    (docker.settings.parent / "certs.d").mkdir()
    (docker.settings.parent / "key.json").touch()
    docker.settings.write_text(OWNERS)
    docker.group.write_text("docker:x:990:bob\n")
    docker.configure(ours=1)
    docker.configure(ours=2)
    docker.bring()
    docker.files["__docker_packages_note"].write_text("docker.io\nlibip6tc2\nrunc\n")
    # The owner's own needs one of them.
    docker.programs["apt-get"] = """shift 3; for one; do echo "Remv $one [1]"; done
        case " $* " in *" libip6tc2 "*) echo "Remv firewalld [2]" ;; esac"""
    asked = docker.play("removal", check=True, tell=["base_there"])
    assert asked.code == 0, asked.said
    there = asked.told["base_there"]
    assert there["packages"] == ["docker.io", "runc"]
    assert there["groups"] == []
    assert "containerd.service" not in there["units"]
    # Ansible keeps what it replaces.
    backups = [str(path) for path in docker.settings.parent.glob("daemon.json.*~")]
    assert backups
    assert sorted(there["files"]) == sorted(backups)
    docker.stamp.unlink()
    docker.leave()
    assert docker.settings.read_text() == OWNERS
    assert (docker.settings.parent / "certs.d").is_dir()


RULES = """*filter
:FORWARD DROP [0:0]
:DOCKER - [0:0]
:DOCKER-USER - [0:0]
:DOCKER-MINE - [0:0]
-A INPUT -j DOCKER-MINE
-A FORWARD -j DOCKER-USER
-A FORWARD -o docker0 -j DOCKER
-A FORWARD -i br-aaaaaaaaaaaa ! -o br-aaaaaaaaaaaa -j ACCEPT
-A FORWARD -i br-0123456789ab -j ACCEPT
-A DOCKER-USER -j RETURN
COMMIT
*nat
:DOCKER - [0:0]
:DOCKER_OUTPUT - [0:0]
-A POSTROUTING -s 10.8.0.0/24 -d 172.20.0.0/16 -o eth1 -j MASQUERADE
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-A POSTROUTING -s 172.17.0.2/32 -d 172.17.0.2/32 -p tcp -m tcp --dport 80 -j MASQUERADE
-A OUTPUT -d 127.0.0.11/32 -j DOCKER_OUTPUT
COMMIT
"""
THE_REST = """*filter
:FORWARD {policy} [0:0]
:DOCKER-MINE - [0:0]
-A INPUT -j DOCKER-MINE
-A FORWARD -i br-0123456789ab -j ACCEPT
COMMIT
*nat
:DOCKER_OUTPUT - [0:0]
-A POSTROUTING -s 10.8.0.0/24 -d 172.20.0.0/16 -o eth1 -j MASQUERADE
-A OUTPUT -d 127.0.0.11/32 -j DOCKER_OUTPUT
COMMIT
"""


@pytest.mark.parametrize(("policy", "then"), [("ACCEPT", "ACCEPT"), ("", "DROP")])
def test_only_rules_and_bridges_of_docker_go(docker, policy, then):
    bridges, restored = docker.files["__docker_bridges"], docker.root / "restored"
    bridges.write_text("docker0\nbr-aaaaaaaaaaaa\n")
    docker.program("iptables-save", f"cat <<'END'\n{RULES}END", told=False)
    docker.program("iptables-restore", f"cat >{restored}", told=False)
    docker.program("ip")
    text = (ROLE / "files/remove-rules").read_text()
    done = docker.sh(f"set -- {bridges} {policy}\n{text}")
    assert done.returncode == 0, done.stderr
    assert restored.read_text() == THE_REST.format(policy=then)
    removed = [call.split()[-1] for call in docker.called if call.startswith("ip link delete")]
    assert removed == ["docker0", "br-aaaaaaaaaaaa"]


@pytest.fixture
def running(docker):
    """A function that plays the role's first look at a host where Docker runs."""

    def look(*names, root="/var/lib/docker", live=False, stopped=(), **variables):
        info = json.dumps({"DockerRootDir": root, "LiveRestoreEnabled": live})
        docker.programs |= {
            "docker": f"""case "$*" in
              info*) echo '{info}' ;;
              *--all*) printf '%s\\n' {" ".join([*names, *stopped])} ;;
              ps*) printf '%s\\n' {" ".join(names)} ;;
            esac""",
            "ss": "",
        }
        return docker.play("preflight", **variables)

    return look


def wanted(docker):
    told = docker.play("ours", tell=["__docker_daemon"]).told
    return told["__docker_daemon"]


def test_containers_of_the_owners_are_not_ended(docker, running):
    docker.settings.write_text(OWNERS)
    played = running("web", "gpubed-1000-77-1700000000")
    assert played.code != 0
    for words in (
        "containers that gpubed did not start: web.",
        "docker stop web)",
        '"live-restore": true',
        f"into {docker.settings} yourself and restart Docker",
        "services: {docker: null}",
    ):
        assert words in " ".join(played.said.replace('\\"', '"').split())
    assert docker.settings.read_text() == OWNERS
    assert list(docker.record.parent.iterdir()) == []


def test_where_only_gpubeds_containers_run_nothing_is_refused(docker, running):
    docker.settings.write_text(OWNERS)
    played = running("gpubed-1000-77-1700000000", stopped=["old"])
    assert played.code == 0, played.said


def test_settings_that_the_owner_wrote_himself_serve(docker, running):
    owners = json.dumps({**wanted(docker), "dns": ["10.0.0.1"]})
    docker.settings.write_text(owners)
    docker.files["__docker_process"].touch()  # he has restarted it since
    played = running("web", live=True)
    assert played.code == 0, played.said
    docker.configure(**wanted(docker))
    assert docker.settings.read_text() == owners
    docker.leave()
    assert docker.called == []
    assert docker.settings.read_text() == owners
    assert not docker.before.exists()


def test_a_cluster_that_was_configured_is_configured_again(docker, running):
    """With containers that somebody started in the owner's Docker since; live-restore is on."""
    docker.settings.write_text(OWNERS)
    docker.configure(**wanted(docker))
    for variables in ({}, {"docker_mirror": "https://mirror.lab"}):
        played = running("web", live=True, **variables)
        assert played.code == 0, played.said
