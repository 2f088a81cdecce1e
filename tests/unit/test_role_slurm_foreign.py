"""What role slurm finds on a host that is its owner's, and refuses to touch."""

import os
import subprocess

import pytest

from support import role_variables
from support.role_tasks import play
from support.slurm_owners import GROUP, PEOPLE, ROLE, UUID, getent, put

pytestmark = pytest.mark.process


@pytest.fixture
def foreign(tmp_path):
    """A function that asks on a host whose files are a test's own what is foreign there."""
    (tmp_path / "bin").mkdir()

    def ask(*units, running=(), group=False, note="", packages=(), state="active"):
        answers = {
            "systemctl": f'case " {" ".join(running)} " in *" $2 "*) echo {state};; esac',
            "getent": f"exit {0 if group else 2}",
            "dpkg-query": "".join(f"echo '{line}'\n" for line in packages) + "exit 1",
        }
        for name, does in answers.items():
            program = tmp_path / "bin" / name
            program.write_text(f"#!/bin/sh\n# STAND-IN\n{does}\n")
            program.chmod(0o755)
        text = (ROLE / "files/foreign-slurm").read_text()
        look = role_variables.value("slurm", "__slurm_others_databases", "debian-12")
        for root in ("/etc/", "/var/"):
            text, look = (words.replace(root, f"{tmp_path}{root}") for words in (text, look))
        done = subprocess.run(
            ["sh", "-c", text, "foreign-slurm", GROUP, note and f"{tmp_path}{note}", look, *units],
            env={"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=True,
        )
        return [line.replace(str(tmp_path), "") for line in done.stdout.splitlines()]

    return ask


def test_what_the_owner_has_is_named(foreign, tmp_path):
    put(
        tmp_path, "etc/slurm/slurm.conf", "etc/munge/munge.key", "var/lib/slurm/slurmctld/job_state"
    )
    units = ("munge.service", "slurmd.service", "mariadb.service")
    assert foreign(*units, running=("slurmd.service", "mariadb.service"), group=True) == [
        "/etc/slurm/slurm.conf",
        "/etc/munge/munge.key",
        "/var/lib/slurm",
        "slurmd.service",
        "mariadb.service",
        "group researchers",
    ]


NOTE = "/etc/gpubed/slurm-database"
SERVER = ["mariadb-server installed", "mysql-server not-installed", "mariadb-server-core installed"]


@pytest.mark.parametrize(
    ("packages", "databases", "said"),
    [
        ([], [], []),
        (SERVER[1:], [], []),
        (SERVER, [], ["package mariadb-server"]),
        ([], ["mysql"], ["/var/lib/mysql"]),
        (SERVER, ["mysql", "wiki"], ["package mariadb-server", "/var/lib/mysql"]),
    ],
)
def test_a_database_server_of_the_owners_is_named_though_it_is_stopped(
    foreign, tmp_path, packages, databases, said
):
    put(tmp_path, *(f"var/lib/mysql/{name}/db.opt" for name in databases))
    assert foreign("mariadb.service", note=NOTE, packages=packages) == said


def preflight(folder, users=(), ansible_user="operator", **programs):
    (folder / "key").write_text("k" * 64)
    return play(
        folder,
        "slurm",
        "preflight",
        programs={"getent": getent(None), "systemctl": "", "dpkg-query": "exit 1", **programs},
        inventory_hostname="node-0",
        ansible_user=ansible_user,
        gpubed_cluster="lab",
        gpubed_head="node-0",
        gpubed_uuid=UUID,
        gpubed_nodes=[{"name": "node-0", "gpus": 0}],
        slurm_users=list(users),
        __slurm_munge_key_file=str(folder / "key"),
        __slurm_marked={"rc": 1},
    )


def test_a_slurm_of_the_owners_is_refused_in_words(tmp_path):
    done = preflight(tmp_path, systemctl='[ "$2" != slurmctld.service ] || echo active')
    assert done.code != 0
    said = " ".join(done.said.split())
    assert "node-0 has what gpubed did not set up" in said
    assert "slurmctld.service. Nothing was touched." in said
    assert "Take services.slurm out of cluster.yml" in said
    assert "changed" not in done.tasks.values()


@pytest.mark.parametrize(("user", "code"), [("alice", 2), ("operator", 0)])
def test_who_sets_a_host_up_is_no_researcher(tmp_path, user, code):
    """It would lock itself out: on the head by its key, on workers altogether."""
    alice = {"name": "alice", "uid": 20001}
    done = preflight(tmp_path, [alice], ansible_user=user)
    assert done.code == code, done.said
    told = "node-0 is set up as user alice, which services.slurm.users has"
    assert (told in " ".join(done.said.split())) == bool(code)


@pytest.mark.parametrize(
    ("people", "groups", "reason"),
    [
        ({}, [("gpubed-bob", 30000)], "users or, if it is the same person, that number (uid)"),
        (PEOPLE, [], "gpubed-bob has 1005 instead of 20002"),
        ({"gpubed-bob": "gpubed-bob:x:20002:100::/home/bob:"}, [("gpubed-bob", 3000)], None),
    ],
)
def test_numbers_of_the_owners_users_and_groups_are_not_changed(tmp_path, people, groups, reason):
    """Of an account that is there already the role changes no group either."""
    users = [{"name": "gpubed-bob", "uid": 20002}, {"name": "gpubed-cy", "uid": 20003}]
    done = preflight(tmp_path, users, getent=getent(None, people, groups))
    assert (done.code == 0) == (reason is None), done.said
    assert reason is None or reason in " ".join(done.said.split())
