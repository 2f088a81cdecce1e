"""`gpubed-horovodrun` starts as many ranks as were asked for, where they were asked for.

horovodrun is a STAND-IN that prints its words: the real one starts a rank on each slot that it
is told of, whatever `-np` says, and refuses hosts beside a hostfile.
"""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from support import machines

pytestmark = pytest.mark.process

TEMPLATE = machines.ROOT / "roles/horovod/templates/gpubed-horovodrun.j2"
# Those of Horovod 0.28.1 (runner/launch.py); the first take a value.
VALUED = """
-H --hosts -hostfile --hostfile -np --num-proc -p --ssh-port -i --ssh-identity-file
--autotune-bayes-opt-max-samples --autotune-gaussian-process-noise --autotune-log-file
--autotune-steps-per-sample --autotune-warmup-samples --binding-args --blacklist-cooldown-range
--cache-capacity --config-file --cycle-time-ms --elastic-timeout --fusion-threshold-mb
--gloo-timeout-seconds --host-discovery-script --log-level --max-np --max-num-proc --min-np
--min-num-proc --mpi-args --network-interface --network-interfaces --num-nccl-streams
--output-filename --reset-limit --slots-per-host --stall-check-shutdown-time-seconds
--stall-check-warning-time-seconds --start-timeout --thread-affinity --timeline-filename
"""
BARE = """
-v --version -cb --check-build --autotune --no-autotune --disable-cache --gloo --mpi --jsrun
--hierarchical-allgather --no-hierarchical-allgather --hierarchical-allreduce
--no-hierarchical-allreduce --torus-allreduce --no-torus-allreduce --log-hide-timestamp
--log-with-timestamp --log-without-timestamp --no-log-hide-timestamp --mpi-threads-disable
--no-mpi-threads-disable -prefix-timestamp --prefix-output-with-timestamp --stall-check
--no-stall-check --tcp --timeline-mark-cycles --no-timeline-mark-cycles --verbose
"""
PARSER = f"""#!{sys.executable}
import argparse, shlex
parser = argparse.ArgumentParser()
for option in {VALUED.split()}:
    parser.add_argument(option)
for option in {BARE.split()}:
    parser.add_argument(option, action="store_true")
parser.add_argument("command", nargs=argparse.REMAINDER)
print(" ".join(shlex.quote(word) for word in parser.parse_args().command))
"""


@pytest.fixture
def script(tmp_path):
    """The program's text, with what it reads in a folder of ours."""
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("node-0 slots=2\nnode-1 slots=2\nnode-2 slots=1\n")
    settings = tmp_path / "horovod.env"
    settings.write_text(f"HOROVOD_GLOO_IFACE=eth1\nGPUBED_SECRETS={tmp_path}\n")
    program = tmp_path / "horovodrun"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    variables = {"ansible_managed": "managed", "__horovod_bin": str(tmp_path)}
    text = Templar(DataLoader(), variables=variables).template(
        trust_as_template(TEMPLATE.read_text())
    )
    for name, path in (("hostfile", hostfile), ("horovod.env", settings)):
        text = text.replace(f"/etc/gpubed/{name}", str(path))
    return text


@pytest.fixture
def started(script):
    """A function that starts ranks on three nodes and returns (their slots, np, the others)."""

    def start(*words):
        done = subprocess.run(
            ["sh", "-c", script, "gpubed-horovodrun", *words, "--", "python", "a b.py"],
            env=os.environ,
            capture_output=True,
            text=True,
            check=True,
        )
        told = done.stdout.splitlines()
        assert told[-4:] == ["gpubed-rank", "sh", "-c", "exec 'python' 'a b.py'"]
        assert "--hostfile" not in told
        slots, ranks = (told[told.index(option) + 1] for option in ("-H", "-np"))
        return slots, ranks, told

    return start


@pytest.mark.parametrize("words", [("-np", "1"), ("--num-proc", "1"), ("--num-proc=1",)])
def test_one_rank_is_one_rank(started, words):
    assert started(*words)[:2] == ("node-0:1", "1")


def test_without_a_number_every_slot_has_a_rank(started):
    assert started()[:2] == ("node-0:2,node-1:2,node-2:1", "5")


@pytest.mark.parametrize(
    "words", [("-H", "node-1:2,node-2:1"), ("--hosts", "node-1:2,node-2:1")], ids=lambda w: w[0]
)
def test_hosts_of_the_caller_count(started, words):
    assert started(*words)[:2] == ("node-1:2,node-2:1", "3")
    assert started(*words, "-np", "2")[:2] == ("node-1:2", "2")


@pytest.mark.parametrize(
    "words",
    [
        *(["--" + name, "3"] for name in ("n", "max", "min", "log", "host", "network")),
        ["-np", "3", "--verbose", "--help", "-v"],
        ["--", "-h", "a'b", "two\nlines\n", "", " ", "$HOME `id` \\", "x=1", "\xe9\xdf\u4e16"],
    ],
    ids=lambda words: words[0],
)
def test_an_argument_of_a_job_is_never_an_option_of_horovodrun(script, tmp_path, words):
    """horovodrun is a STAND-IN: argparse with the real one's options, and what Gloo runs."""
    (tmp_path / "horovodrun").write_text(PARSER)
    rank = tmp_path / "gpubed-rank"
    rank.write_text('#!/bin/sh\nexec "$@"\n')
    rank.chmod(0o755)
    show = [sys.executable, "-c", "import sys; print(sys.argv[1:])"]
    command = ["sh", "-c", script, "gpubed-horovodrun", "-np", "2", "--", *show, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    there = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ran = subprocess.run(
        ["sh", "-c", done.stdout], env=there, capture_output=True, text=True, check=True
    )
    assert ran.stdout == f"{words}\n"
    assert shlex.split(done.stdout)[0] == "gpubed-rank"


@pytest.fixture
def by_hand(script, tmp_path):
    """A run that nobody started but a person or a notebook, and the file of its heartbeat."""
    (tmp_path / "horovodrun").write_text('#!/bin/sh\necho "$GPUBED_HEARTBEAT"\nexec sleep 60\n')
    words = ["sh", "-c", script, "gpubed-horovodrun", "--", "python"]
    environment = {k: v for k, v in os.environ.items() if k != "GPUBED_HEARTBEAT"}
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as run:
        yield run, Path(run.stdout.readline().strip())
        run.kill()


def until(true, within=15):
    end = time.monotonic() + within
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_run_by_hand_has_a_heartbeat_that_all_may_read(by_hand, tmp_path):
    _, beat = by_hand
    until(beat.exists)
    assert beat.parent.parent == tmp_path, "where all nodes read it"
    assert beat.stat().st_mode & 0o777 == 0o644
    assert beat.parent.stat().st_mode & 0o777 == 0o755
    first = beat.read_text()
    until(lambda: beat.read_text() not in ("", first))


@pytest.mark.parametrize("end", [subprocess.Popen.terminate, subprocess.Popen.kill])
def test_its_ranks_end_with_it_on_every_node(by_hand, end):
    """Though nobody waits for it, as of a notebook that goes on."""
    run, beat = by_hand
    until(beat.exists)
    end(run)
    until(lambda: beat.read_text() == "end\n")
