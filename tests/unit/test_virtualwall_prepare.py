"""What a node of the Virtual Wall is prepared with; the commands that change it are STAND-INs."""

from __future__ import annotations

import os
import subprocess

import pytest

from gpubed.backends.virtualwall import prepare

GIB = 2**21  # sectors


@pytest.fixture
def node(tmp_path):
    """A function that runs the script on a node with such a disk; returns output and calls."""
    bin_, calls = tmp_path / "bin", tmp_path / "calls"
    bin_.mkdir()

    def command(name, says="", code=0):
        stub = bin_ / name
        stub.write_text(f'#!/bin/sh\necho {name} "$@" >>{calls}\n{says}\nexit {code}\n')
        stub.chmod(0o755)

    def run(root=16, disk=233, grows=False, spare=""):
        block = tmp_path / "block"
        part = tmp_path / "devices/sda/sda1"
        part.mkdir(parents=True)
        block.mkdir()
        (block / "sda").symlink_to(part.parent)
        (block / "sda1").symlink_to(part)
        (part / "partition").write_text("1\n")
        (part / "size").write_text(f"{root * GIB}\n")
        (part.parent / "size").write_text(f"{disk * GIB}\n")
        command("systemctl")
        command("findmnt", "case $* in *FSTYPE*) echo ext4 ;; *) echo /dev/sda1 ;; esac")
        command("growpart", f"echo {disk * GIB} >{part}/size" if grows else "", 0 if grows else 1)
        command("resize2fs")
        command(
            "lsblk", f"printf '%s\\n' '1 /dev/sda1 part ext4 /' '9 /dev/sda3 part swap' '{spare}'"
        )
        script = prepare.script().replace("/sys/class/block", str(block))
        environment = {"PATH": f"{bin_}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["sh", "-s"], input=script, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout, calls.read_text().splitlines()

    return run


def test_a_node_does_not_go_to_sleep(node):
    _, calls = node()
    targets = "sleep.target suspend.target hibernate.target hybrid-sleep.target"
    assert f"systemctl --quiet mask {targets}" in calls
