"""How a virtual machine mounts what it shares with this machine; nothing is started."""

import json
import subprocess
import sys

import pytest

from gpubed.backends.local import machine
from gpubed.backends.local.runtime import NODE_CACHE
from support import machines
from support.by_path import load

FOLDER = machines.ROOT / "templates/machine"


@pytest.fixture
def options(monkeypatch):
    """The mount options of each share, as the machine's units have them."""
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    program = load(FOLDER / "gpubed-machine", "gpubed_machine")
    escaped = lambda *words: words[-1].strip("/").replace("/", "-") + ".mount"  # noqa: E731
    monkeypatch.setattr(program, "_run", escaped)

    def read(path, foreign):
        unit, link = program._mount("share1", path, foreign=foreign)
        assert link.content.decode() == f"../{unit.path.rsplit('/', 1)[-1]}"
        [line] = [x for x in unit.content.decode().splitlines() if x.startswith("Options=")]
        return line.removeprefix("Options=").split(",")

    return read


def test_links_in_the_cache_of_all_clusters_are_not_followed(options):
    """Root of a node of another cluster may put one in place of a whole folder."""
    assert {"nosuid", "nodev", "nosymfollow"} <= set(options(NODE_CACHE, True))


def test_links_of_the_clusters_own_storage_are(options):
    assert "nosymfollow" not in options("/shared", False)


def test_the_machine_is_told_which_is_which():
    node = machine.NodeInputs.model_construct(cpus=1, memory=1 << 30, shared=None)
    told = json.loads(machine._settings(node))
    assert told["foreign"] == [NODE_CACHE]
    assert set(told["foreign"]) <= set(told["shares"])


@pytest.mark.process
def test_mount_knows_the_option():
    """As of util-linux 2.38, which the machines' Debian has."""
    said = subprocess.run(["mount", "--version"], capture_output=True, text=True, check=True)
    version = said.stdout.split("util-linux ")[1].split()[0].split(".")
    if tuple(map(int, version[:2])) < (2, 38):
        pytest.skip(f"this machine's mount is of util-linux {'.'.join(version)}")
    asked = ["mount", "--fake", "--options", "nosymfollow", "--types", "tmpfs", "none", "/mnt"]
    assert subprocess.run(asked, capture_output=True, check=False).returncode == 0
