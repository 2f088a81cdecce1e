"""What the hook of role slurm does on a host that is let go: jobs end, the owner's stays."""

import signal
import subprocess
import sys

import pytest
from jinja2 import Environment, StrictUndefined

from support import role_variables
from support.shell_host import ShellHost
from support.slurm_owners import ROLE, UUID, files, getent, put

pytestmark = pytest.mark.process


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
        "slurm_home_root": str(tmp_path / "homes"),
        "__slurm_server": "/etc/mysql/mariadb.conf.d/90-gpubed-slurm.cnf",
        "inventory_hostname": "node-0",
        "__slurm_others_databases": role_variables.value(
            "slurm", "__slurm_others_databases", "debian-12"
        ).replace("/var/lib/", f"{tmp_path}/"),
    }
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
        (tmp_path / "gpubed/ledger").mkdir(parents=True)
        said = hook.render(
            ansible_managed="m", __slurm_named=f"# cluster: {UUID}", __slurm_on_head=head, **ours
        )
        assert host.sh(said).returncode == 0
        return host

    return leave


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
    assert called[:2] == ["scancel --nodelist=node-0", "systemctl stop slurmd.service"]


def test_what_has_been_the_owners_since_another_cluster_left_stays(left):
    host = left("1a1b")
    assert host.called == []
    assert files(host.etc) == {"60-gpubed-slurm.conf", "accounts", "gpubed.conf"}
