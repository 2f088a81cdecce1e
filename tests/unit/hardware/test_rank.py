"""`gpubed-rank` starts a rank on its CPUs; run here for real, on this machine's."""

import os
import signal
import subprocess
import sys
import time

import pytest
from jinja2 import Environment, StrictUndefined

from gpubed.hardware.binding import Binding
from support import machines

pytestmark = pytest.mark.process

TEMPLATES = machines.ROOT / "roles/horovod/templates"
FILES = machines.ROOT / "roles/horovod/files"
SAY = ["sh", "-c", 'echo "$(taskset -cp $$ | sed "s/.*: //") gpu=$GPUBED_GPU hca=$GPUBED_HCA"']


def render(name, **variables):
    environment = Environment(undefined=StrictUndefined, trim_blocks=True)
    template = environment.from_string((TEMPLATES / name).read_text())
    return template.render(ansible_managed="managed", __horovod_bin="/nowhere", **variables)


def gpubed_rank(tmp_path):
    """The program's text, with what it reads in a folder of ours and calls in the role's."""
    text = render("gpubed-rank.j2").replace("/etc/gpubed", str(tmp_path))
    return text.replace("/usr/local/bin", str(FILES))


@pytest.fixture
def rank(tmp_path):
    """A function that runs a command as a local rank."""
    (tmp_path / "horovod.env").write_text("GPUBED_NODE=node-0\n")
    program = tmp_path / "gpubed-rank"
    program.write_text(gpubed_rank(tmp_path))

    def run(bindings, **environment):
        if bindings is not None:
            text = render("ranks.j2", __horovod_bindings=bindings, horovod_bind=True)
            (tmp_path / "ranks").write_text(text)
        done = subprocess.run(
            ["sh", program, *SAY],
            env={"PATH": os.environ["PATH"], **environment},
            capture_output=True,
            text=True,
            check=True,
            start_new_session=True,
        )
        return done.stdout.strip()

    return run


def test_who_reads_what_a_rank_says_waits_for_the_rank_alone(rank, tmp_path):
    """And not for who minds it, which sleeps for seconds; each job would end as much later."""
    rank(None, GPUBED_HEARTBEAT=str(tmp_path / "beat"))
    minds = ["pgrep", "-f", f"^sh {tmp_path}/gpubed-rank"]
    assert subprocess.run(minds, capture_output=True, check=False).returncode == 0


def interfaces(tmp_path, start):
    """What a rank is told of interfaces that was started so on a node whose own is enp65s0f1."""
    (tmp_path / "horovod.env").write_text("HOROVOD_GLOO_IFACE=enp65s0f1\n")
    (tmp_path / "gpubed-rank").write_text(gpubed_rank(tmp_path))
    start = start.replace("gpubed-rank", f"sh {tmp_path}/gpubed-rank")
    environment = {"PATH": os.environ["PATH"]}
    done = subprocess.run(
        ["sh", "-c", f"{start} env"], env=environment, capture_output=True, text=True, check=True
    )
    return {line for line in done.stdout.splitlines() if "_IF" in line}


@pytest.mark.parametrize("launched", ["HOROVOD_RANK=7"])
def test_the_heads_interface_means_nothing_on_other_nodes(tmp_path, launched):
    """Horovod 0.28.1 puts both before each rank's command (gloo_run.py, mpi_run.py)."""
    start = f"{launched} HOROVOD_GLOO_IFACE=eno2 NCCL_SOCKET_IFNAME=eno2 gpubed-rank"
    assert interfaces(tmp_path, start) == {"HOROVOD_GLOO_IFACE=enp65s0f1"}, "nccl.conf counts"


@pytest.fixture
def mine():
    return sorted(os.sched_getaffinity(0))


@pytest.mark.parametrize("variable", ["HOROVOD_LOCAL_RANK", "SLURM_LOCALID"])
def test_each_launchers_local_rank_is_bound(rank, mine, variable):
    bindings = [Binding(0, 0, str(mine[0]), "mlx5_0"), Binding(1, 3, str(mine[-1]), None)]
    assert rank(bindings, **{variable: "0"}) == f"{mine[0]} gpu=0 hca=mlx5_0"
    assert rank(bindings, **{variable: "1"}) == f"{mine[-1]} gpu=3 hca="


def everywhere(answer):
    """Whether the command was left on all CPUs of this machine."""
    done = subprocess.run(SAY, capture_output=True, text=True, check=True)
    return answer.split()[0] == done.stdout.split()[0]


def test_what_is_no_rank_is_not_bound(rank, mine):
    assert everywhere(rank([Binding(0, 0, str(mine[0]), None)]))


@pytest.mark.parametrize(
    ("variables", "local", "gpu"),
    [
        ({"SLURM_JOB_GPUS": "2"}, "0", "2"),
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_GPUS": "2"}, "0", "2"),
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_GPUS": "1,2"}, "1", "2"),
        # The batch node's numbers travel along to steps on other nodes: the step's own count.
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_GPUS": "1", "SLURM_JOB_GPUS": "0"}, "0", "1"),
        # More ranks than GPUs share them.
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_GPUS": "1,2"}, "2", "1"),
    ],
)
def test_a_job_of_a_scheduler_is_bound_to_the_gpus_that_it_was_given(
    rank, mine, variables, local, gpu
):
    bindings = [Binding(number, number, str(mine[0]), f"mlx5_{number}") for number in range(3)]
    said = rank(bindings, SLURM_JOB_ID="7", SLURM_LOCALID=local, **variables)
    assert said == f"{mine[0]} gpu={gpu} hca=mlx5_{gpu}"


@pytest.mark.parametrize("variables", [{}, {"SLURM_STEP_ID": "0", "SLURM_JOB_GPUS": "0"}])
def test_a_job_of_a_scheduler_that_was_given_no_gpu_is_beside_none(rank, variables):
    """An exclusive job is told of all GPUs of its first node, and its steps have none."""
    bindings = [Binding(0, 0, "0", "mlx5_0")]
    said = rank(bindings, SLURM_JOB_ID="7", SLURM_LOCALID="0", **variables)
    assert everywhere(said)
    assert said.endswith("gpu= hca=")


def test_the_first_rank_of_a_run_leaves_the_nodes_settings_with_it(rank, tmp_path):
    (tmp_path / "horovod.env").write_text("OMP_NUM_THREADS=3\nHOROVOD_WAIT_US=50\n")
    rank(None, HOROVOD_RANK="0", HOROVOD_LOCAL_RANK="0", GPUBED_RUN_DIR=str(tmp_path))
    kept = (tmp_path / "rank-0.env").read_text().splitlines()
    assert {"OMP_NUM_THREADS=3", "HOROVOD_WAIT_US=50"} <= {*kept}


@pytest.fixture
def owned(tmp_path):
    """A rank in a group of its own that looks every tenth of a second for its heartbeat."""
    (tmp_path / "horovod.env").write_text("GPUBED_NODE=node-0\n")
    text = gpubed_rank(tmp_path)
    program = tmp_path / "gpubed-rank"
    program.write_text(text.replace("sleep 5", "sleep 0.1").replace("sleep 10", "sleep 0.5"))
    beat = tmp_path / ".heartbeat"

    def start(*command, stdout=None):
        beat.write_text("1\n")
        environment = {"PATH": os.environ["PATH"], "GPUBED_HEARTBEAT": str(beat)}
        return subprocess.Popen(
            ["sh", program, *command], env=environment, start_new_session=True, stdout=stdout
        )

    start.beat = beat
    return start


def test_a_rank_goes_on_while_somebody_wants_it(owned):
    rank = owned("sleep", "3")
    for number in range(25):
        owned.beat.write_text(f"{number}\n")
        time.sleep(0.1)
    assert rank.wait(5) == 0


@pytest.mark.parametrize("end", ["silence", "word"])
def test_a_rank_ends_with_its_run(owned, end):
    rank = owned("sh", "-c", "trap '' TERM; sleep 60")
    if end == "word":
        owned.beat.write_text("end\n")
    assert rank.wait(10) == -signal.SIGKILL


LEAVES = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if sys.argv[1] == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("there", flush=True)
    time.sleep(60)
    os._exit(0)
time.sleep(0.5)
"""


@pytest.mark.parametrize("child", ["hears", "deaf"])
def test_what_a_rank_leaves_with_its_output_open_ends_after_it(owned, child):
    """Who reads that output to its end, as launchers do, would never know that it is done."""
    rank = owned(sys.executable, "-c", LEAVES, child, stdout=subprocess.PIPE)
    assert rank.communicate(timeout=20)[0] == b"there\n"
    assert rank.returncode == 0


def test_what_another_rank_started_is_left_alone(owned):
    other = owned("sleep", "4")
    assert owned("true").wait(5) == 0
    for number in range(30):
        owned.beat.write_text(f"{number}\n")
        time.sleep(0.1)
    assert other.wait(10) == 0
