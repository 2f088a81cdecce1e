"""What a node of the Virtual Wall is prepared with; the commands that change it are STAND-INs."""

from __future__ import annotations

import os
import subprocess
from types import SimpleNamespace

import pytest

from gpubed.backends.virtualwall import prepare
from gpubed.core import progress

pytestmark = pytest.mark.process

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


def test_a_root_that_cannot_grow_says_how_small_it_is_and_what_is_unused(node):
    said, calls = node(spare="233 /dev/sda4 part")
    assert "warning: / has 16 GiB of the 233 of /dev/sda and cannot grow" in said
    assert said.rstrip().endswith("nothing seems to be on /dev/sda4")
    assert not [call for call in calls if call.startswith("resize2fs")]


def test_a_root_that_grows_says_nothing(node):
    said, calls = node(grows=True)
    assert said == ""
    assert "resize2fs /dev/sda1" in calls


@pytest.mark.parametrize("code", [0, 1])
def test_the_rest_of_the_disk_is_mounted_by_the_testbeds_tool_or_it_is_said(
    node, tmp_path, monkeypatch, code
):
    tool, genuine, space = tmp_path / "bin/mkextrafs.pl", prepare.script(), tmp_path / "extra"
    text = genuine.replace("/usr/local/etc/emulab/mkextrafs.pl", str(tool))
    settings = text.replace("EXTRA_PATH=''", f"EXTRA_PATH='{space}'", 1)
    monkeypatch.setattr(prepare, "script", lambda: settings)
    tool.write_text(f'#!/bin/sh\necho mkextrafs "$@" >>{tmp_path}/calls\nexit {code}\n')
    tool.chmod(0o755)
    said, calls = node(grows=True)
    assert f"mkextrafs {space}" in calls
    assert ("warning: the rest of the disk is not mounted" in said) == bool(code)


def test_what_a_node_warns_of_is_told_with_its_name(monkeypatch):
    told = []
    monkeypatch.setattr(progress, "_listener", told.append)
    done = SimpleNamespace(stdout="resized\nwarning: / has 16 GiB\n")
    ssh = SimpleNamespace(node=SimpleNamespace(name="node-1"), run=lambda *_, **__: done)
    prepare.prepare(ssh, {})
    assert [note["message"].split(";")[0] for note in told] == ["node-1: / has 16 GiB"]
