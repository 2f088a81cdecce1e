"""What a node image with simulated GPUs does without where an archive cannot be had."""

import os
import subprocess
from pathlib import Path

import pytest

import simulated_gpus

pytestmark = pytest.mark.process

COMPILER = simulated_gpus.IMAGE / "compiler/build"


@pytest.mark.skipif(
    "bookworm" not in Path("/etc/os-release").read_text(), reason="it does nothing but on Debian 12"
)
@pytest.mark.parametrize(("failing", "code"), [("apt-get", 0), ("dpkg-deb", 1)])
def test_only_a_missing_archive_is_no_failure(tmp_path, failing, code):
    """apt-get and dpkg-deb are STAND-INs, one of which fails."""
    for name in ("apt-get", "dpkg-deb"):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {int(name == failing)}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["sh", COMPILER, tmp_path / "out"],
        env={"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert bool(done.returncode) == bool(code), done.stderr
    assert done.stdout.startswith("note: ") == (failing == "apt-get")
