"""setup.sh for a user who is not root: what it says where Docker does not answer."""

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).parents[2] / "setup.sh"
DENIED = (
    "permission denied while trying to connect to the Docker daemon socket at"
    " unix:///var/run/docker.sock"
)
ABSENT = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is it running?"


@pytest.fixture
def setup(tmp_path):
    """Runs the script as ann, who is a stranger here; the programs that it asks are STAND-INS."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def program(name, does):
        (folder / name).write_text(f"#!/bin/sh\n# STAND-IN\n{does}\n")
        (folder / name).chmod(0o755)

    def setup(said, groups):
        program("docker", f"echo 'ERROR: {said}' >&2; exit 1")
        program("id", f"case $1 in -u) echo 1000 ;; -un) echo ann ;; -nG) echo {groups} ;; esac")
        program(
            "python3", 'case "$*" in *ensurepip*|*version_info*) ;; *) touch made; exit 1;; esac'
        )
        for name in ("ssh", "dockerd", "mmdebstrap", "tc"):
            program(name, "exit 0")
        (tmp_path / "setup.sh").write_text(SCRIPT.read_text())
        return subprocess.run(
            ["/bin/bash", tmp_path / "setup.sh", "run"],
            capture_output=True,
            text=True,
            env={"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(tmp_path)},
            check=False,
        )

    return setup


def test_a_user_outside_the_docker_group_learns_how_to_join(setup, tmp_path):
    done = setup(DENIED, "ann users")
    assert done.returncode == 3
    assert "error: ann may not use Docker" in done.stderr
    assert "→ sudo usermod -aG docker ann, then log in again" in done.stderr
    assert not (tmp_path / "made").exists(), "said before anything is downloaded"


def test_a_member_whose_session_is_older_logs_in_again(setup):
    done = setup(DENIED, "ann docker")
    assert done.returncode == 3
    assert "this session began before" in done.stderr
    assert "→ log in again, or: newgrp docker" in done.stderr
    assert "usermod" not in done.stderr


def test_a_daemon_that_does_not_run_is_started_by_who_may(setup):
    done = setup(ABSENT, "ann docker")
    assert done.returncode == 3
    assert "no Docker daemon answers" in done.stderr
    assert "→ sudo " in done.stderr
    assert "usermod" not in done.stderr
