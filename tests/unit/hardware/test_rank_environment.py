"""`gpubed-environment`: what a run's first rank starts with is kept with the run; run for real."""

import os
import subprocess

import pytest

from support import machines

pytestmark = pytest.mark.process

HOROVOD = machines.ROOT / "roles/horovod"
PROGRAM = HOROVOD / "files/gpubed-environment"
FIRST = {"HOROVOD_RANK": "0"}


@pytest.fixture
def start(tmp_path):
    """A function that starts a rank of a run; returns what it said, and what was kept."""
    folder, file = tmp_path / "run", tmp_path / "nccl.conf"
    folder.mkdir()
    file.write_text("# managed\nNCCL_SOCKET_IFNAME==eth1\nNCCL_IB_DISABLE=1\nNCCL_IB_TC=106\n")
    program = tmp_path / "gpubed-environment"
    program.write_text(PROGRAM.read_text().replace("/etc/nccl.conf", str(file)))

    def run(**environment):
        given = {"HOME": str(tmp_path), "GPUBED_RUN_DIR": str(folder), **environment}
        done = subprocess.run(
            ["sh", program, "echo", "a b", "c"],
            env={"PATH": os.environ["PATH"], **given},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "a b c\n"
        kept = folder / "rank-0.env"
        return done.stderr, kept.read_text().splitlines() if kept.is_file() else None

    run.folder = folder
    return run


@pytest.mark.parametrize("first", [FIRST, {"OMPI_COMM_WORLD_RANK": "0"}])
def test_what_the_first_rank_starts_with_is_kept(start, first):
    """What is in its environment counts, and NCCL's file where that says nothing."""
    found = start(
        **first,
        HOROVOD_FUSION_THRESHOLD="67108864",
        OMP_NUM_THREADS="4",
        NCCL_IB_DISABLE="0",
        OMPI_MCA_btl="tcp",
        PYTHONPATH="/x",
    )
    lines = ["NCCL_IB_DISABLE=0", "NCCL_IB_TC=106", "NCCL_SOCKET_IFNAME==eth1", "OMP_NUM_THREADS=4"]
    own = ["HOROVOD_RANK=0"] if "HOROVOD_RANK" in first else []
    assert found == ("", ["HOROVOD_FUSION_THRESHOLD=67108864", *own, *lines])


@pytest.mark.parametrize("place", ["home"])
def test_a_users_file_of_nccl_counts_before_the_nodes(start, tmp_path, place):
    file = tmp_path / (".nccl.conf" if place == "home" else "mine.conf")
    file.write_text("NCCL_IB_TC=7\n")
    named = {"NCCL_CONF_FILE": str(file)} if place == "named" else {}
    kept = start(**FIRST, **named)[1]
    assert [line for line in kept if line.startswith("NCCL_IB_TC")] == ["NCCL_IB_TC=7"]


def test_nothing_that_could_be_secret_is_kept(start):
    secrets = ("HOROVOD_SECRET_FILE", "_HOROVOD_SECRET_KEY", "NCCL_TOKEN", "OMP_PASSWORD")
    kept = start(**FIRST, **dict.fromkeys(secrets, "hush-hush"))[1]
    assert "hush-hush" not in "\n".join(kept)


@pytest.mark.parametrize(
    "other",
    [{"HOROVOD_RANK": "1", "OMPI_COMM_WORLD_RANK": "0"}, {**FIRST, "GPUBED_RUN_DIR": "/nowhere"}],
)
def test_who_is_not_the_first_rank_of_a_run_keeps_nothing(start, other):
    assert start(**other) == ("", None)


def test_a_rank_starts_where_nothing_can_be_kept(start):
    (start.folder / "rank-0.env").mkdir()
    said, kept = start(**FIRST)
    assert "rank-0.env" in said
    assert kept is None
