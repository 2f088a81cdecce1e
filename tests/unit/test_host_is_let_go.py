"""What is undone on an own host when its cluster lets it go: services, holds, what roles left.

The programs of the host are STAND-INS; the scripts are those that run there.
"""

import os
import subprocess

import pytest
from jinja2 import Environment, StrictUndefined

from gpubed.backends.static import node
from support import machines

LEAVE = machines.ROOT / "roles/nvidia_driver/templates/leave.j2"
NOTED = ("pin", "unattended", "noted", "leaving")


@pytest.fixture
def host(tmp_path):
    """A function that runs a script as sh does on a host whose files are a test's own."""
    called = tmp_path / "called"
    called.write_text("")
    for folder in ("bin", "etc/systemd/system", "etc/gpubed/leave.d"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("apt-mark", "systemctl", "nft"):
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\n# STAND-IN\necho "{name} $*" >>{called}\n')
    (tmp_path / "bin/sudo").write_text('#!/bin/sh\n# STAND-IN\nshift\nexec "$@"\n')
    for program in (tmp_path / "bin").iterdir():
        program.chmod(0o755)

    def run(text):
        subprocess.run(
            ["sh", "-c", text.replace("/etc/", f"{tmp_path}/etc/")],
            env={
                "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
                "HOME": str(tmp_path),
            },
            check=True,
        )
        return called.read_text().splitlines()

    return run


def leave(folder):
    """The hook of role nvidia_driver, and the files that it takes away."""
    files = {f"__nvidia_driver_{name}": str(folder / name) for name in NOTED}
    text = Environment(undefined=StrictUndefined).from_string(LEAVE.read_text())
    return text.render(ansible_managed="managed", **files), [folder / name for name in NOTED]


def test_the_driver_stays_and_is_not_held_any_more(host, tmp_path):
    hook, files = leave(tmp_path)
    for path in files:
        path.write_text("nvidia-driver-cuda\nnvidia-kernel-open-dkms\n")
    assert host(hook) == ["apt-mark unhold nvidia-driver-cuda nvidia-kernel-open-dkms"]
    assert not [path for path in files if path.exists()]


def test_services_of_the_cluster_end_and_hooks_of_roles_run(host, tmp_path):
    units = tmp_path / "etc/systemd/system"
    for name in ("gpubed-health.timer", "gpubed-health.service", "jupyterlab.service"):
        (units / name).write_text("# Written by gpubed\n")
    (units / "owners.service").write_text("[Service]\n")
    (tmp_path / "etc/gpubed/leave.d/driver").write_text("apt-mark unhold nvidia-driver-cuda\n")
    called = host(node._RELEASE % {"mark": tmp_path / "mark", "pattern": "/gpubed/d"})
    assert set(called) == {
        "systemctl disable --now gpubed-health.timer",
        "systemctl disable --now gpubed-health.service",
        "systemctl disable --now jupyterlab.service",
        "nft delete table inet gpubed",
        "apt-mark unhold nvidia-driver-cuda",
    }
