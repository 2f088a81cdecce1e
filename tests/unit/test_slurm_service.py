"""A run through another cluster's Slurm: the agent, the output and the results are real.

OpenSSH, its SFTP and Slurm's programs are STAND-INS, which do the work of two nodes here.
"""

import os
import shutil
from types import SimpleNamespace

import pytest

from gpubed.backends.slurm.service import SlurmService
from gpubed.core.errors import Refused, UsageError
from gpubed.nodes.openssh import Login
from gpubed.nodes.ssh import CommandFailed, CommandTimedOut, Unreachable
from gpubed.testbeds.base import Task, World
from support.samples import sample_plan

pytestmark = pytest.mark.process

UUID = "1c3ff9a0-0000-4000-8000-000000000000"
PROGRAMS = {
    # The last word is the command there.
    "ssh": '''for word; do :; done
exec sh -c "$word"''',
    "sbatch": """cat >$HERE/script; echo "$@" >$HERE/options
[ ! -e $HERE/refuse ] || { cat $HERE/refuse >&2; exit 1; }
for word; do case $word in --output=*) output=${word#*=} ;; esac; done
export SLURM_JOB_ID=7 SLURM_JOB_NODELIST=n[0-1] SLURM_CPUS_PER_TASK=2
( bash $HERE/script >$output 2>&1 </dev/null; echo $? >$HERE/code ) >/dev/null 2>&1 &
echo "7;uni\"""",
    "srun": """while case $1 in --*) true ;; *) false ;; esac; do shift; done
for n in 0 1; do
  SLURM_PROCID=$n SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURMD_NODENAME=n$n "$@" & all="$all $!"
done
code=0; for one in $all; do wait $one || code=$?; done; exit $code""",
    "scontrol": """case "$*" in
*hostnames*) printf 'n0\\nn1\\n' ;;
*"show node"*) echo "NodeName=x NodeAddr=127.0.0.1 Version=22" ;;
*) state=RUNNING code=0; [ ! -e $HERE/code ] || code=$(cat $HERE/code) state=COMPLETED
  [ $code = 0 ] || state=FAILED
  ! grep -qs "Node failure" $HERE/home/gpubed/*/runs/r1/slurm.log || state=NODE_FAIL
  echo "JobState=$state Reason=None ExitCode=$code:0" ;;
esac""",
    "squeue": ":",
    "nvidia-smi": "[ -e $HERE/blind ] || printf 'A100\\nA100\\n'",
    "scancel": "echo $* >>$HERE/cancelled",
}


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder for the stand-ins' files; the home there is in it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, script in PROGRAMS.items():
        (folder / name).write_text(f"#!/bin/bash\n# STAND-IN\n{script}\n")
        (folder / name).chmod(0o755)
    home = tmp_path / "home"
    python = home / f"gpubed/uni-{UUID[:8]}/env/current/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\nexec python3 "$@"\n')
    python.chmod(0o755)
    for name, value in {"HERE": tmp_path, "HOME": home}.items():
        monkeypatch.setenv(name, str(value))
    # A login shell's profile would set another PATH.
    (home / ".bash_profile").write_text(f"PATH={folder}:$PATH\n")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("gpubed.backends.slurm.service._EVERY_S", 1)

    def get(_login, remote, local, own):
        left = shutil.ignore_patterns(*own)
        shutil.copytree(remote, local, ignore=left, dirs_exist_ok=True)
        return []

    monkeypatch.setattr(Login, "get", get)
    return tmp_path


def run(site, *command, script="", **changes):
    """Run a command on two nodes with two ranks each; return how it ended and what it said."""
    plan = sample_plan(
        backend={"type": "slurm", "login": "me@uni:2222", "account": "vision"},
        nodes=[{"name": "node", "count": 2, "gpus": 2, "machine": {"cpus": 2}}],
        networks={},
        recipe="cuda13",
    )
    source, here = site / "source", site / "here"
    for folder in (source, here):
        folder.mkdir(exist_ok=True)
    (source / "train.sh").write_text(script)
    cluster = SimpleNamespace(plan=plan, name="uni", allocation=SimpleNamespace(uuid=UUID))
    world = World("", here, command or ("sh", "train.sh"), 4, 2)
    task = Task("t", source, ["train.sh"], "r1", here, [world], frozenset({"run.json"}), {"A": "1"})
    lines = []
    task = SimpleNamespace(**{**vars(task), **changes})
    [ended] = SlurmService().run(cluster, task, lines.append)
    return ended, lines, here, world


def test_each_rank_knows_its_place_and_results_come_home(site):
    script = "echo $RANK of $WORLD_SIZE, $LOCAL_RANK at $MASTER_ADDR >$RANK.txt; touch run.json\n"
    ended, lines, here, world = run(site, script=script + "echo I am $RANK\n")
    assert ended.reason == "", lines
    assert lines[0] == "slurm: submitted as job 7"
    assert {f"[{rank}]<stdout>:I am {rank}" for rank in range(4)} <= {*lines}
    said = [(here / f"{rank}.txt").read_text() for rank in range(4)]
    assert said == [f"{rank} of 4, {rank % 2} at 127.0.0.1\n" for rank in range(4)]
    assert world.places() == [("n0", 2), ("n1", 2)]
    assert not (here / "run.json").exists(), "that name is gpubed's own"
    assert not {".gpubed", ".secret"} & {path.name for path in here.iterdir()}
    options = (site / "options").read_text().split()
    assert {"--account=vision", "--nodes=2", f"--job-name=gpubed.{UUID}.uni.r1"} <= {*options}


def test_what_starts_its_own_ranks_starts_once_per_node(site):
    script = "echo $PET_NNODES x $PET_NPROC_PER_NODE $PET_RDZV_CONF >$GPUBED_NODE.txt\n"
    ended, _, here, _ = run(site, script=script, environment={"GPUBED_PER_NODE": "1"})
    assert ended.reason == ""
    said = [(here / f"n{n}.txt").read_text() for n in (0, 1)]
    assert said == ["2 x 2 is_host=1\n", "2 x 2 is_host=0\n"]


def test_each_rank_has_a_gpu_or_none_starts(site):
    script = "echo $GPUBED_DEVICE $GPUBED_DEVICE_NAME >$RANK.txt\n"
    ended, _, here, _ = run(site, script=script)
    assert ended.reason == ""
    assert (here / "3.txt").read_text() == "cuda:1 cuda:A100\n"
    (site / "blind").touch()
    (site / "code").unlink()
    ended, lines, *_ = run(site, script=script)
    assert "ended: JobState=FAILED" in ended.reason
    assert "n1 has 0 of 2 GPU(s) to use" in lines


def test_a_rank_that_fails_ends_its_node_and_is_written_down(site):
    ended, _, here, _ = run(site, script="[ $RANK = 1 ] && exit 3; exec sleep 3\n")
    assert ended.reason == "job 7 ended: JobState=FAILED Reason=None ExitCode=3:0"
    assert (here / ".ends" / "1").exists()


def test_a_lost_node_is_named(site):
    said = "echo srun: error: Node failure on n1 >>$GPUBED_RUN_DIR/slurm.log; sleep 2\n"
    ended, *_ = run(site, script=f"[ $RANK != 0 ] || {said}")
    assert ended == ("n1 failed, and job 7 with it", "node_lost")


def test_a_job_that_slurm_refuses_is_told_in_its_words(site):
    (site / "refuse").write_text("sbatch: error: Invalid qos specification\n")
    with pytest.raises(Refused, match="Slurm refuses the job: Invalid qos specification"):
        run(site)


def test_an_interruption_cancels_the_job(site, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("gpubed.nodes.output.follow", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(site, script="sleep 1\n")
    assert (site / "cancelled").read_text() == f"--name=gpubed.{UUID}.uni.r1\n"
    assert (site / f"home/gpubed/uni-{UUID[:8]}/runs/r1/.cancelled").exists()


def test_a_container_is_refused(site):
    with pytest.raises(UsageError, match="starts no containers"):
        run(site, image="debian:12")


def test_a_login_that_fails_says_what_must_work(site):
    ssh = site / "bin" / "ssh"
    for said, hint in (
        ("me@uni: Permission denied (publickey).", "must work without a question"),
        ("Host key verification failed.", "compare the host key"),
        ("ssh: Could not resolve hostname uni", "correct backend.login, or name uni in"),
    ):
        ssh.write_text(f"#!/bin/sh\necho '{said}' >&2; exit 255\n")
        with pytest.raises(Unreachable, match="the login to me@uni fails") as caught:
            Login("me@uni").run("true")
        assert said in caught.value.message
        assert hint in caught.value.hint
    with pytest.raises(Unreachable) as caught:
        Login("me@uni:2222").run("true")
    assert caught.value.hint == "correct backend.login, or name uni in ~/.ssh/config"
    ssh.write_text("#!/bin/sh\nexit 255\n")
    with pytest.raises(Unreachable) as caught:
        Login("me@uni:2222").run("true")
    assert caught.value.hint.startswith("ssh -p 2222 me@uni   must work")


def test_a_session_quotes_words_and_tells_ends(site):
    login = Login("uni")
    assert login.run("printf '<%%s>' %s %s", "a b", "'").stdout == "<a b><'>"
    assert login.run("cat", stdin="x").stdout == "x"
    with pytest.raises(CommandFailed, match="exit code 3"):
        login.run("exit 3")
    with pytest.raises(CommandTimedOut):
        login.run("exec sleep 5", timeout=0.5)
