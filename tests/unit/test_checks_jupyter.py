"""The check of JupyterLab waits for one that has begun to start, and for no other."""

import os
import subprocess

import pytest

from gpubed.checks import logins

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("states", "asked"),
    [(["start-post", "start-post", "running"], 3), (["running"], 1), (["dead"], 1)],
)
def test_one_that_starts_is_waited_for(tmp_path, states, asked):
    """With a STAND-IN for systemctl: it says what systemd says, one state after the other."""
    (tmp_path / "states").write_text("\n".join(states))
    stand_in = tmp_path / "systemctl"
    stand_in.write_text(
        f"#!/bin/sh\necho asked >> {tmp_path}/asked\n"
        f'echo "SubState=$(head -n 1 {tmp_path}/states)"\nsed -i 1d {tmp_path}/states\n'
    )
    stand_in.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["sh", "-c", logins._AWAIT], env={"PATH": path}, check=True, timeout=20)
    assert len((tmp_path / "asked").read_text().splitlines()) == asked
