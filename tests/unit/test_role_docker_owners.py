"""On own hosts role docker ends no container of the owner's, and removes only rules of Docker.

The role's own tasks and scripts run; programs that would change this machine are STAND-INS.
"""

import json

import pytest

from support import machines
from support.role_tasks import play
from support.shell_host import ShellHost

ROLE = machines.ROOT / "roles/docker"
pytestmark = pytest.mark.process


@pytest.fixture
def look(tmp_path):
    """A function that plays the role's first look at a host where Docker runs."""

    def look(*names, settings="{}", root="/var/lib/docker", live=False, stopped=(), **given):
        file, pid = tmp_path / "daemon.json", tmp_path / "docker.pid"
        file.write_text(settings)
        info = json.dumps({"DockerRootDir": root, "LiveRestoreEnabled": live})
        programs = {
            "docker": f"""case "$*" in
              info*) echo '{info}' ;;
              *--all*) printf '%s\\n' {" ".join([*names, *stopped])} ;;
              ps*) printf '%s\\n' {" ".join(names)} ;;
            esac""",
            "ss": "",
            "systemctl": given.pop("systemctl", ""),
            "dpkg-query": "shift 2; for one; do echo $one installed; done",
        }
        given = {"gpubed_uuid": "0f0e", "gpubed_cluster": "own", **given}
        given |= {"__docker_settings": str(file), "__docker_process": str(pid)}
        brought = {"rc": 0 if given.pop("brought", False) else 1}
        return play(
            tmp_path, "docker", "preflight", programs=programs, __docker_stamped=brought, **given
        )

    return look


def test_containers_of_the_owners_are_not_ended(look):
    played = look("web", "gpubed-1000-77-1700000000")
    assert played.code != 0
    for words in (
        "containers that gpubed did not start: web.",
        "docker stop web)",
        '"live-restore": true',
        "yourself and restart Docker",
        "services: {docker: null}",
    ):
        assert words in " ".join(played.said.replace('\\"', '"').split())


def test_containers_of_the_owners_are_not_hidden(look):
    played = look(settings='{"data-root": "/big"}', root="/big", stopped=["old"], live=True)
    assert played.code != 0
    assert "gpubed did not start: old." in played.said
    assert "keeps its data in /big" in played.said


@pytest.mark.parametrize(
    ("names", "given"),
    [
        ((), {}),
        (("gpubed-1000-77-1700000000",), {"stopped": ["old"]}),
        (("web",), {"live": True}),
        (("web",), {"brought": True}),
        (("web",), {"systemctl": "exit 3"}),
    ],
    ids=["none", "of gpubed", "outlive a restart", "gpubed's Docker", "no daemon"],
)
def test_where_no_container_of_the_owners_ends_nothing_is_refused(look, names, given):
    played = look(*names, **given)
    assert played.code == 0, played.said


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
def test_only_rules_and_bridges_of_docker_go(tmp_path, policy, then):
    host = ShellHost(tmp_path / "host")
    bridges, restored = tmp_path / "bridges", tmp_path / "restored"
    bridges.write_text("docker0\nbr-aaaaaaaaaaaa\n")
    host.program("iptables-save", f"cat <<'END'\n{RULES}END", told=False)
    host.program("iptables-restore", f"cat >{restored}", told=False)
    host.program("ip")
    text = (ROLE / "files/remove-rules").read_text()
    done = host.sh(f"set -- {bridges} {policy}\n{text}")
    assert done.returncode == 0, done.stderr
    assert restored.read_text() == THE_REST.format(policy=then)
    removed = [call.split()[-1] for call in host.called if call.startswith("ip link delete")]
    assert removed == ["docker0", "br-aaaaaaaaaaaa"]
