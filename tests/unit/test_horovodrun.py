"""`gpubed-horovodrun` starts as many ranks as were asked for, where they were asked for.

horovodrun is a STAND-IN that prints its words: the real one starts a rank on each slot that it
is told of, whatever `-np` says, and refuses hosts beside a hostfile.
"""

import os
import subprocess

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from support import machines

TEMPLATE = machines.ROOT / "roles/horovod/templates/gpubed-horovodrun.j2"


@pytest.fixture
def started(tmp_path):
    """A function that starts ranks on three nodes and returns (their slots, np, the others)."""
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

    def start(*words):
        done = subprocess.run(
            ["sh", "-c", text, "gpubed-horovodrun", *words, "--", "python", "a b.py"],
            env=os.environ,
            capture_output=True,
            text=True,
            check=True,
        )
        told = done.stdout.splitlines()
        assert told[-3:] == ["gpubed-rank", "python", "a b.py"]
        assert "--hostfile" not in told
        slots, ranks = (told[told.index(option) + 1] for option in ("-H", "-np"))
        return slots, ranks, told

    return start


@pytest.mark.parametrize("words", [("-np", "1"), ("--num-proc", "1"), ("--num-proc=1",)])
def test_one_rank_is_one_rank(started, words):
    assert started(*words)[:2] == ("node-0:1", "1")


def test_without_a_number_every_slot_has_a_rank(started):
    assert started()[:2] == ("node-0:2,node-1:2,node-2:1", "5")


def test_fewer_ranks_fill_the_first_nodes(started):
    assert started("-np", "3")[:2] == ("node-0:2,node-1:1", "3")


def test_more_ranks_than_slots_are_for_horovod_to_refuse(started):
    assert started("-np", "9")[:2] == ("node-0:2,node-1:2,node-2:1", "9")


@pytest.mark.parametrize(
    "words", [("-H", "node-1:2,node-2:1"), ("--hosts", "node-1:2,node-2:1")], ids=lambda w: w[0]
)
def test_hosts_of_the_caller_count(started, words):
    assert started(*words)[:2] == ("node-1:2,node-2:1", "3")
    assert started(*words, "-np", "2")[:2] == ("node-1:2", "2")


def test_a_hostfile_of_the_caller_counts(started, tmp_path):
    (tmp_path / "own").write_text("node-2 slots=1\n\n")
    assert started("--hostfile", str(tmp_path / "own"))[:2] == ("node-2:1", "1")


def test_other_options_reach_horovodrun(started):
    told = started("--mpi", "--verbose")[2]
    assert {"--mpi", "--verbose"} <= set(told)
    assert "--gloo" not in told
