"""Building a node image: what it could do without is said. Docker is a STAND-IN."""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

import simulated_gpus
from gpubed.backends.local import build, daemon
from gpubed.backends.local.image import Recipe
from gpubed.core import progress

pytestmark = pytest.mark.process

COMPILER = simulated_gpus.IMAGE / "compiler/build"


def test_what_a_build_could_do_without_is_said(monkeypatch):
    log = [{"stream": "Step 1/2 : FROM x\n"}, {"stream": "note: there is no compiler\nmore\n"}, {}]
    images = SimpleNamespace(build=lambda **_: (None, iter(log)), prune=lambda **_: None)
    monkeypatch.setattr(daemon, "client", lambda: SimpleNamespace(images=images))
    said = []
    monkeypatch.setattr(progress, "emit", lambda kind, **data: said.append((kind, data)))
    build.build(Recipe("debian-12", simulate=True))
    assert said == [("note", {"message": "there is no compiler"})]


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
