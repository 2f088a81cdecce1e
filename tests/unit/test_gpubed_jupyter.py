"""A researcher's own JupyterLab as a job of Slurm, whose programs are STAND-INS."""

import json
import os
import socket
import subprocess
import sys

import pytest

from gpubed.core.paths import assets

pytestmark = pytest.mark.process

PROGRAM = assets() / "roles/slurm/files/gpubed-jupyter"
AWAY = "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1"
FORGOTTEN = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"


@pytest.fixture
def started(tmp_path):
    """A function that queues a server, to whose questions Slurm gives these answers, in order."""
    (tmp_path / "bin").mkdir()

    def program(name, does):
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/sh\n# STAND-IN\necho {name} >>{tmp_path}/asked\n{does}\n")
        path.chmod(0o755)

    def start(*answers):
        with socket.create_server(("127.0.0.1", 0)) as server:
            (folder := tmp_path / ".gpubed-jupyter").mkdir()
            place = {"address": "127.0.0.1", "port": server.getsockname()[1], "token": "secret"}
            (folder / "7.json").write_text(json.dumps({**place, "certificate": "c"}))
            (tmp_path / "answers").write_text("".join(f"{answer}\n" for answer in answers))
            program("sbatch", "echo 7")
            program("scancel", "")
            answer = 'sh -c "$(head -n 1 answers)"; code=$?; sed -i 1d answers; exit $code'
            program("squeue", f"cd {tmp_path}; {answer}")
            path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
            return subprocess.run(
                [sys.executable, PROGRAM],
                env={**os.environ, "PATH": path, "HOME": str(tmp_path)},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )

    start.folder = tmp_path
    return start


def test_a_controller_that_is_away_for_a_moment_does_not_end_it(started):
    done = started("echo 'PENDING (Resources)'", AWAY, "echo 'RUNNING (None)'")
    assert done.returncode == 0, done.stderr
    assert "lab?token=secret" in done.stdout
    assert "Unable to contact slurm controller" in done.stderr
    assert "scancel" not in (started.folder / "asked").read_text()


@pytest.mark.parametrize("last", ["true", FORGOTTEN])
def test_a_job_that_has_ended_is_told(started, last):
    done = started(AWAY, last)
    assert done.returncode == 1
    assert "job 7 has ended" in done.stderr
