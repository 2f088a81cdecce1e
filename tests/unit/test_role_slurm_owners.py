"""On own hosts role slurm undoes what it set up, and refuses what its owner did.

The role's own tasks and scripts run; programs of the host are STAND-INS.
"""

import os
import signal
import subprocess
import sys

import pytest
import yaml
from jinja2 import Environment, StrictUndefined

from support import machines, role_variables
from support.role_tasks import play
from support.shell_host import ShellHost

ROLE = machines.ROOT / "roles/slurm"
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="it writes files of root's")
GROUP, UUID = "researchers", "0f0e"
# gpubed-ann was made by the role, gpubed-bob by the owner.
PEOPLE = {
    "gpubed-ann": "gpubed-ann:x:20001:20001::/shared/home/gpubed-ann:/bin/bash",
    "gpubed-bob": "gpubed-bob:x:1005:100:Bob:/home/bob:/bin/zsh",
}


def getent(members="", people=PEOPLE, groups=()):
    """A STAND-IN for getent, as shell."""
    lines = "".join(
        f"passwd,{name}) echo '{line}' ;;\n" for name, line in people.items()
    ) + "".join(f"group,{name}) echo '{name}:x:{gid}:' ;;\n" for name, gid in groups)
    group = f"group,{GROUP}) echo '{GROUP}:x:990:{members}' ;;\n" if members is not None else ""
    return (
        "code=0; base=$1; shift\n"
        f'for name; do case "$base,$name" in\n{group}{lines}*) code=2 ;;\nesac; done\nexit $code'
    )


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


def put(folder, *paths):
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("the owner's\n")


def test_a_host_without_slurm_is_taken(foreign):
    assert foreign("slurmd.service") == []


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


@pytest.mark.parametrize("state", ["activating", "reloading", "deactivating"])
def test_a_service_that_is_about_to_run_is_the_owners(foreign, state):
    """As after a reboot."""
    assert foreign("munge.service", running=["munge.service"], state=state) == ["munge.service"]


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


def test_of_a_worker_no_database_is_asked_for(foreign, tmp_path):
    put(tmp_path, "var/lib/mysql/wiki/db.opt")
    assert foreign("slurmd.service", packages=SERVER) == []


@pytest.mark.parametrize("wiki", [True, False])
def test_a_server_that_a_cluster_left_is_taken_again_unless_it_is_used(foreign, tmp_path, wiki):
    """Records of the accounting outlive Slurm; what came beside them is the owner's."""
    names = ["mysql", "sys", "performance_schema", "slurm_acct_db", "#innodb_temp"]
    put(tmp_path, *(f"var/lib/mysql/{name}/db.opt" for name in names + ["wiki"] * wiki))
    put(tmp_path, NOTE[1:])
    assert foreign(note=NOTE, packages=SERVER) == ["/var/lib/mysql/wiki"] * wiki


def test_a_configuration_that_is_a_link_into_nowhere_is_the_owners(foreign, tmp_path):
    (tmp_path / "etc/slurm").mkdir(parents=True)
    (tmp_path / "etc/slurm/slurm.conf").symlink_to("/not/mounted/slurm.conf")
    assert foreign() == ["/etc/slurm/slurm.conf"]


def preflight(folder, users=(), **programs):
    (folder / "key").write_text("k" * 64)
    return play(
        folder,
        "slurm",
        "preflight",
        programs={"getent": getent(None), "systemctl": "", "dpkg-query": "exit 1", **programs},
        inventory_hostname="node-0",
        gpubed_cluster="lab",
        gpubed_head="node-0",
        gpubed_uuid=UUID,
        gpubed_nodes=[{"name": "node-0", "gpus": 0}],
        slurm_users=list(users),
        __slurm_munge_key_file=str(folder / "key"),
        __slurm_condition=str(folder / "mark"),
    )


def test_a_slurm_of_the_owners_is_refused_in_words(tmp_path):
    done = preflight(tmp_path, systemctl='[ "$2" != slurmctld.service ] || echo active')
    assert done.code != 0
    said = " ".join(done.said.split())
    assert "node-0 has what gpubed did not set up" in said
    assert "slurmctld.service. Nothing was touched." in said
    assert "Take services.slurm out of cluster.yml" in said
    assert "changed" not in done.tasks.values()


@pytest.mark.parametrize(("check", "rc"), [(True, 0), (False, 2)])
def test_a_look_at_a_part_of_the_nodes_says_that_it_leaves_slurm_out(tmp_path, check, rc):
    """Its configuration describes all nodes; a real run of a part stops."""
    (tmp_path / "key").write_text("k" * 64)
    done = play(
        tmp_path,
        "slurm",
        "main",
        check=check,
        gpubed_fingerprints={},
        gpubed_head="node-0",
        gpubed_nodes=[{"name": "node-0"}, {"name": "node-1"}],
        slurm_enabled=True,
        __slurm_munge_key_file=str(tmp_path / "key"),
    )
    assert done.code == rc, done.said
    said = " ".join(done.said.split())
    assert ("Slurm is not looked at" in said) == check
    assert "describes all nodes, but node-1 are left out. Run it without --limit." in said


def test_slurm_of_the_role_is_not_refused(tmp_path):
    (tmp_path / "mark").touch()
    assert preflight(tmp_path, systemctl="echo active").code == 0


@pytest.mark.parametrize(
    ("people", "groups", "reason"),
    [
        (
            {},
            [("gpubed-bob", 3000)],
            "3000 instead of 20002: choose another name in services.slurm.users.",
        ),
        ({}, [("gpubed-bob", 30000)], "users or, if it is the same person, that number (uid)"),
        (PEOPLE, [], "gpubed-bob has 1005 instead of 20002"),
        ({}, [("gpubed-bob", 20002)], None),
        ({"gpubed-bob": "gpubed-bob:x:20002:100::/home/bob:"}, [("gpubed-bob", 3000)], None),
    ],
)
def test_numbers_of_the_owners_users_and_groups_are_not_changed(tmp_path, people, groups, reason):
    """Of an account that is there already the role changes no group either."""
    (tmp_path / "mark").touch()
    users = [{"name": "gpubed-bob", "uid": 20002}, {"name": "gpubed-cy", "uid": 20003}]
    done = preflight(tmp_path, users, getent=getent(None, people, groups))
    assert (done.code == 0) == (reason is None), done.said
    assert reason is None or reason in " ".join(done.said.split())


@AS_ROOT
@pytest.mark.parametrize("ours", [True, False])
def test_what_comes_with_the_role_is_noted_before_the_mark(tmp_path, ours):
    """Once: what is there when the role runs again, it installed itself."""
    put(tmp_path, "slurm/brought")
    done = play(
        tmp_path,
        "slurm",
        "leaving",
        inventory_hostname="node-0",
        gpubed_head="node-0",
        gpubed_uuid=UUID,
        ansible_managed="managed",
        base_there={"mark": ["mark"]} if ours else {},
        __slurm_folder=str(tmp_path / "slurm"),
        __slurm_database_note=str(tmp_path / "slurm-database"),
        __slurm_leaving=str(tmp_path / "leave.d/slurm"),
        __slurm_packages=["munge", "slurmd"],
        __slurm_head_packages=["mariadb-server"],
    )
    assert done.code == 0, done.said
    noted = [call for call in done.calls if call.startswith("base.brought")]
    assert noted == ([] if ours else ["base.brought munge slurmd mariadb-server"])
    # What a cluster before brought is the owner's.
    assert (tmp_path / "slurm/brought").exists() is ours
    # It outlives Slurm, as do the records.
    assert (tmp_path / "slurm-database").exists()


@AS_ROOT
@pytest.mark.parametrize(
    ("before", "brought"),
    [
        (None, ["nvml", "munge", "slurmd", "mariadb-server"]),
        ("", ["nvml", "munge", "slurmd", "mariadb-server"]),
        ("munge\n", ["nvml", "slurmd", "mariadb-server"]),
        ("nvml\nmunge\nslurmd\nmariadb-server\n", []),
    ],
)
def test_what_a_former_version_brought_is_what_it_did_not_find(tmp_path, before, brought):
    folder = tmp_path / "slurm"

    def known():
        done = play(
            tmp_path,
            "slurm",
            "former",
            inventory_hostname="node-0",
            gpubed_head="node-0",
            __slurm_folder=str(folder),
            __slurm_nvml_package="nvml",
            __slurm_packages=["munge", "slurmd"],
            __slurm_head_packages=["mariadb-server"],
        )
        assert done.code == 0, done.said

    known()
    assert not folder.exists(), "a removal had come as far as the notes"
    folder.mkdir()
    if before is not None:
        (folder / "packages").write_text(before)
    known()
    assert (folder / "brought").read_text().split() == brought
    # Where it has noted that, it adds what it brings later.
    (folder / "brought").write_text("later\n")
    known()
    assert (folder / "brought").read_text() == "later\n"


@pytest.mark.parametrize("used", [True, False])
def test_a_server_that_others_use_goes_on_and_stays(used):
    owns = role_variables.value(
        "slurm",
        "__slurm_owns",
        "debian-12",
        inventory_hostname="node-0",
        gpubed_head="node-0",
        __slurm_others={"stdout_lines": ["/var/lib/mysql/wiki"] * used},
    )
    assert ("mariadb.service" in owns["units"]) is not used
    assert owns["packages"]["kept"] == ["mariadb-server"] * used
    # It would delete the owner's files in /etc/slurm.
    assert owns["packages"]["purge"] is False


def test_the_mark_is_written_before_all_else():
    present = yaml.safe_load((ROLE / "tasks/present.yml").read_text())
    kinds = [f"ansible.builtin.{how}_tasks" for how in ("import", "include")]
    files = [task[kind] for task in present for kind in kinds if kind in task]
    # The note of accounts before the mark: without it the role would take them for its own. What
    # the node had as the head goes while the hook still says so.
    assert files[:4] == ["preflight.yml", "former_head.yml", "leaving.yml", "condition.yml"]


@pytest.fixture
def former(tmp_path):
    """A function that runs the tasks on a node which is the head no more, and says what is left."""
    etc, mark = tmp_path / "etc", tmp_path / "gpubed/slurm/head"
    put(tmp_path, "mark", "etc/slurmdbd.conf", "etc/slurm.cnf", "gpubed/slurm/keys/ann")
    put(tmp_path, "lib/mysql/slurm_acct_db/db.opt", "lib/slurm/slurmctld/job_state")

    def run(*others):
        asked = 'case "$1" in show) for one; do case $one in *.service)'
        asked += " echo LoadState=loaded; echo ActiveState=active; echo ;; esac; done ;; esac"
        return play(
            tmp_path,
            "slurm",
            "former_head",
            programs={"systemctl": asked, "scancel": "", "squeue": ""},
            inventory_hostname="node-1",
            gpubed_head="node-0",
            gpubed_uuid=UUID,
            __slurm_condition=str(tmp_path / "mark"),
            __slurm_folder=str(mark.parent),
            __slurm_server=str(etc / "slurm.cnf"),
            __slurm_accounting=str(etc / "slurmdbd.conf"),
            __slurm_others_databases="".join(f"echo {name};" for name in others) or "true",
        )

    run.folder, run.mark = tmp_path, mark
    return run


@pytest.mark.parametrize("version", ["this", "a former one"])
def test_who_is_the_head_no_more_has_no_controller_and_keeps_the_records(former, version):
    """Two controllers would drive the same nodes; a former version left no mark of the head's."""
    if version == "this":
        former.mark.touch()
    done = former()
    assert done.code == 0, done.said
    stopped = [call for call in done.calls if " stop " in call or "disable" in call]
    assert {call.split()[-1] for call in stopped} == {
        *("slurmctld.service", "slurmdbd.service", "mariadb.service")
    }
    assert [call for call in done.calls if call.startswith("scancel")], "no job is left behind"
    assert files(former.folder / "etc") | files(former.mark.parent) == set()
    assert files(former.folder / "lib") == {"db.opt", "job_state"}
    assert "stay there, in /var/lib/mysql/slurm_acct_db" in " ".join(done.said.split())
    assert (former.folder / "mark").exists()
    again = former()
    assert "changed" not in again.tasks.values()
    assert not [call for call in again.calls if call.startswith("scancel")]


def test_a_database_server_that_others_use_goes_on_where_the_head_was(former):
    former.mark.touch()
    done = former("/var/lib/mysql/wiki")
    assert done.code == 0, done.said
    assert not [call for call in done.calls if "stop mariadb" in call or "disable mariadb" in call]
    assert any("restart mariadb" in call for call in done.calls)


def test_a_node_that_never_was_the_head_is_not_looked_at(former):
    (former.folder / "etc/slurmdbd.conf").unlink()
    done = former()
    assert done.code == 0, done.said
    assert done.calls == []


@pytest.mark.parametrize("entry", ["present", "undo"])
def test_the_heads_part_goes_wherever_slurm_is_set_up_or_removed(entry):
    tasks = yaml.safe_load((ROLE / f"tasks/{entry}.yml").read_text())
    goes = [t for t in tasks if t.get("ansible.builtin.include_tasks") == "former_head.yml"]
    assert [task["when"] for task in goes] == [
        "not __slurm_on_head and __slurm_found" if entry == "present" else "not __slurm_on_head"
    ]


def test_the_mark_is_removed_after_all_else():
    """All but its folder; and notes after what they tell of."""
    undo = yaml.safe_load((ROLE / "tasks/undo.yml").read_text())
    *before, common, folder = undo
    assert common["ansible.builtin.include_role"] == {"name": "base", "tasks_from": "remove"}
    assert "__slurm_condition" not in str(before)
    assert "-empty -delete" in folder["ansible.builtin.command"]
    owns = role_variables.value(
        "slurm",
        "__slurm_owns",
        "debian-12",
        inventory_hostname="node-0",
        gpubed_head="node-0",
        __slurm_folder="/etc/gpubed/slurm",
    )
    assert owns["mark"] == "/etc/systemd/system/slurmd.service.d/gpubed.conf"
    assert owns["files"][-1] == {"path": "/etc/gpubed/slurm", "tree": True}


@pytest.mark.parametrize(
    ("said", "ours"), [(None, False), ("", True), ("# cluster: 1a1b\n", False)]
)
def test_slurm_is_undone_only_where_this_cluster_set_it_up(tmp_path, said, ours):
    """In check mode: nothing is removed here. The owner's slurm.conf plays no part.

    A mark that names no cluster is a former version's.
    """
    mark = tmp_path / "mark"
    mark.write_text(said) if said is not None else None
    done = play(
        tmp_path,
        "slurm",
        "absent",
        check=True,
        programs={"getent": getent("gpubed-bob")},
        inventory_hostname="node-0",
        gpubed_head="node-0",
        gpubed_uuid=UUID,
        gpubed_fingerprints={},
        __slurm_condition=str(mark),
        __slurm_folder=str(tmp_path / "slurm"),
    )
    assert ("Ask who is a researcher" in done.tasks) == ours, done.said


def test_a_mark_that_names_this_cluster_is_its_own(tmp_path):
    is_ours = role_variables.value(
        "slurm",
        "__slurm_is_ours",
        "debian-12",
        gpubed_uuid=UUID,
        __slurm_condition=str(tmp_path / "mark"),
    )
    codes = []
    for uuid in (UUID, UUID + "9"):
        (tmp_path / "mark").write_text(f"# Written by gpubed.\n# cluster: {uuid}\n[Unit]\n")
        codes.append(subprocess.run(["sh", "-c", is_ours], check=False).returncode)
    assert codes == [0, 1]


@pytest.mark.parametrize(
    ("noted", "made"),
    [
        ({"rc": 0, "stdout_lines": ["gpubed-bob", "gone"]}, ["gpubed-bob"]),
        ({"rc": 0, "stdout_lines": []}, []),
        ({"rc": 1, "stdout_lines": []}, ["gpubed-ann"]),
    ],
)
def test_the_note_tells_whose_an_account_is_wherever_homes_are_now(noted, made):
    """Without one, of a former version, the home does."""
    told = {
        name: sorted(
            role_variables.value(
                "slurm",
                name,
                "debian-12",
                slurm_home_root="/shared/home",
                __slurm_noted=noted,
                __slurm_people={"stdout_lines": list(PEOPLE.values())},
            )
        )
        for name in ("__slurm_made", "__slurm_owners")
    }
    assert told == {"__slurm_made": made, "__slurm_owners": sorted(set(PEOPLE) - set(made))}


@pytest.fixture
def left(tmp_path):
    """A function that runs the role's hook on a host whose mark names a cluster."""
    host = ShellHost(tmp_path / "host")
    for name in ("systemctl", "gpasswd", "userdel", "pkill", "groupdel", "sshd", "scancel"):
        host.program(name)
    host.program("scontrol", "exit 1", told=False)
    host.program("getent", getent("gpubed-ann,gpubed-bob"), told=False)
    ours = {
        "__slurm_note": "/etc/gpubed/slurm/accounts",
        "__slurm_condition": "/etc/systemd/system/slurmd.service.d/gpubed.conf",
        "__slurm_leaving": "/etc/gpubed/leave.d/slurm",
        "__slurm_files": ["/etc/ssh/sshd_config.d/60-gpubed-slurm.conf"],
        "__slurm_folder": "/etc/gpubed/slurm",
        "__slurm_daemons": ["slurmd.service"],
        "__slurm_servers": ["mysql.service"],
        "inventory_hostname": "node-0",
        "__slurm_others_databases": role_variables.value(
            "slurm", "__slurm_others_databases", "debian-12"
        ).replace("/var/lib/", f"{tmp_path}/"),
    }
    here = role_variables.value("slurm", "__slurm_is_ours", "debian-12", gpubed_uuid=UUID)
    text = (ROLE / "templates/leave.j2").read_text().replace("/var/lib/", f"{tmp_path}/")
    hook = Environment(undefined=StrictUndefined).from_string(text)

    def leave(uuid, *databases, head=True, **programs):
        for name, does in programs.items():
            host.program(name, does)
        put(tmp_path, *(f"mysql/{name}/db.opt" for name in databases))
        for path in (ours["__slurm_files"][0], ours["__slurm_leaving"]):
            put(host.etc, path.removeprefix("/etc/"))
        for path, said in (("note", "gpubed-ann\n"), ("condition", f"# cluster: {uuid}\n")):
            put(host.etc, ours[f"__slurm_{path}"].removeprefix("/etc/"))
            (host.etc / ours[f"__slurm_{path}"].removeprefix("/etc/")).write_text(said)
        put(tmp_path, "slurm/slurmctld/job_state")
        said = hook.render(
            ansible_managed="m",
            __slurm_group=GROUP,
            __slurm_is_ours=here,
            __slurm_on_head=head,
            **ours,
        )
        assert host.sh(said).returncode == 0
        return host

    return leave


def files(folder):
    return {path.name for path in folder.rglob("*") if path.is_file()}


def test_a_host_that_is_let_go_lets_its_researchers_in_again(left, tmp_path):
    host = left(UUID)
    assert host.called == [
        "scancel --state=PENDING",
        "scancel --state=RUNNING",
        "scancel --state=SUSPENDED",
        "systemctl disable --now slurmd.service",
        "systemctl disable --now mysql.service",
        "systemctl kill --signal=KILL slurmstepd.scope",
        "pkill --signal KILL --exact slurmstepd",
        "pkill --signal KILL --euid gpubed-ann",
        "userdel --force gpubed-ann",
        "gpasswd --delete gpubed-bob researchers",
        "groupdel researchers",
        "sshd -t",
        "systemctl reload ssh",
        "systemctl daemon-reload",
    ]
    assert files(host.etc) == files(tmp_path / "slurm") == set()


@pytest.fixture
def job(tmp_path):
    """A function that starts a process of a job, and a scontrol that knows it by number."""
    started = []

    def start(does="pass"):
        # It says when it is there: a signal that comes sooner would end it in any case.
        program = f"import signal; {does}; print(flush=True)\nwhile True: signal.pause()"
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        started.append(process)
        process.stdout.readline()
        scontrol = f"""
[ "$*" = "listpids * node-0" ] || exit 1
echo "PID      JOBID    STEPID   LOCALID GLOBALID"
case $(ps -o stat= -p {process.pid}) in ""|Z*) ;; *) echo "{process.pid} 7 batch 0 0" ;; esac
"""
        return process, scontrol

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_job_of_anybodys_ends_before_slurm_does(left, job):
    """Of gpubed's own account and of the owner's, which no account that goes ends."""
    process, scontrol = job()
    host = left(UUID, scontrol=scontrol, scancel=f"kill {process.pid}", head=False)
    assert process.wait(0) == -signal.SIGTERM
    called = [call for call in host.called if not call.startswith("scontrol")]
    assert called[:2] == ["scancel --nodelist=node-0", "systemctl disable --now slurmd.service"]


def test_a_job_is_told_to_end_where_no_controller_answers_any_more(left, job):
    process, scontrol = job()
    host = left(UUID, scontrol=scontrol, scancel="exit 1")
    assert process.wait(0) == -signal.SIGTERM
    assert [call for call in host.called if "scancel" in call] == ["scancel --state=PENDING"]


def test_a_job_that_does_not_end_is_killed(left, job):
    process, scontrol = job("signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    left(UUID, scontrol=scontrol, scancel="exit 1", sleep="")
    assert process.wait(0) == -signal.SIGKILL


def test_a_server_that_has_other_databases_by_now_runs_on_without_the_roles_settings(left):
    """It is the owner's, who uses it."""
    called = left(UUID, "mysql", "wiki").called
    assert "systemctl disable --now slurmd.service" in called
    assert "systemctl disable --now mysql.service" not in called
    assert called[-1] == "systemctl try-restart mysql.service"


def test_what_has_been_the_owners_since_another_cluster_left_stays(left, tmp_path):
    host = left("1a1b")
    assert host.called == []
    assert files(host.etc) == {"60-gpubed-slurm.conf", "accounts", "gpubed.conf"}
    assert files(tmp_path / "slurm") == {"job_state"}


def leaves(folder, name):
    return play(
        folder,
        "slurm",
        "user_absent",
        programs=dict.fromkeys(("scancel", "gpasswd", "userdel"), "") | {"pkill": "exit 1"},
        inventory_hostname="node-0",
        gpubed_head="node-0",
        slurm_home_root="/shared/home",
        __slurm_noted={"rc": 1},
        __slurm_people={"stdout_lines": list(PEOPLE.values())},
        __slurm_user=name,
    )


def test_an_account_of_the_owners_only_leaves_the_group(tmp_path):
    done = leaves(tmp_path, "gpubed-bob")
    assert done.code == 0, done.said
    assert done.calls == [
        "scancel --user=gpubed-bob",
        "gpasswd --delete gpubed-bob researchers",
    ]


def test_an_account_that_the_role_made_ends_with_all_that_runs_for_it(tmp_path):
    done = leaves(tmp_path, "gpubed-ann")
    assert done.code == 0, done.said
    assert done.calls == ["scancel --user=gpubed-ann", "pkill --signal KILL --euid gpubed-ann"]
    assert "Remove the user" in done.tasks


@AS_ROOT
def test_accounts_of_the_owners_only_join_the_group(tmp_path):
    """Whose account the role made and who is not in the specification any more, goes."""
    tools = ("groupadd", "groupmod", "useradd", "usermod", "userdel", "gpasswd", "pkill", "scancel")
    done = play(
        tmp_path,
        "slurm",
        "users",
        programs=dict.fromkeys(tools, "") | {"getent": getent("gpubed-ann")},
        inventory_hostname="node-1",
        gpubed_head="node-0",
        slurm_home_root="/shared/home",
        slurm_users=[{"name": "gpubed-bob", "uid": 1005}],
        __slurm_note=str(tmp_path / "slurm/accounts"),
    )
    assert done.code == 0, done.said
    assert [call for call in done.calls if call.split()[0] in tools] == [
        "groupadd -r researchers",
        "pkill --signal KILL --euid gpubed-ann",
        "gpasswd --add gpubed-bob researchers",
    ]
    assert (tmp_path / "slurm/accounts").read_text() == ""


@AS_ROOT
def test_who_has_joined_joins_no_more(tmp_path):
    done = play(
        tmp_path,
        "slurm",
        "users",
        programs={"getent": getent("gpubed-bob"), "gpasswd": "", "groupadd": ""},
        inventory_hostname="node-1",
        gpubed_head="node-0",
        slurm_users=[{"name": "gpubed-bob", "uid": 1005}],
        __slurm_note=str(tmp_path / "slurm/accounts"),
    )
    assert done.code == 0, done.said
    assert not [call for call in done.calls if call.startswith("gpasswd")]
