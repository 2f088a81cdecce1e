"""What a node image is built from."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path

import pytest

import simulated_gpus
from gpubed.backends.local import image
from gpubed.backends.local.config import Runtime
from gpubed.backends.local.image import Recipe
from gpubed.core import paths


@pytest.fixture
def templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy = tmp_path / "templates"
    shutil.copytree(paths.assets() / "templates", copy)
    shutil.copytree(simulated_gpus.IMAGE, copy / "simulation")
    monkeypatch.setattr(image, "assets", lambda: tmp_path)
    monkeypatch.setattr(simulated_gpus, "IMAGE", copy / "simulation")
    return copy / "node"


def test_permissions_do_not_come_from_the_checkout(templates: Path) -> None:
    (templates / "files/etc/sudoers.d/gpubed").chmod(0o666)
    (templates / "files/usr/local/sbin/gpubed-link").chmod(0o600)
    with tarfile.open(fileobj=io.BytesIO(Recipe("debian-12").files)) as tar:
        modes = {entry.name: entry.mode for entry in tar}
        owners = {(entry.uid, entry.gid) for entry in tar}
    assert modes["etc/sudoers.d/gpubed"] == 0o440
    assert modes["usr/local/sbin/gpubed-link"] == 0o755
    assert modes["etc/ssh/sshd_config.d/gpubed.conf"] == 0o644
    assert owners == {(0, 0)}


@pytest.mark.parametrize(
    "name", ["Dockerfile", "packages", "setup", "files/etc/ssh/sshd_config.d/gpubed.conf"]
)
def test_digest_changes_with_every_input(templates: Path, name: str) -> None:
    before = Recipe("debian-12").tag
    with (templates / name).open("a") as file:
        file.write("# one more line\n")
    assert Recipe("debian-12").tag != before


@pytest.mark.parametrize("name", ["machine.py", "archive/packages.toml", "nvml/device.c"])
def test_image_that_simulates_is_another_one_and_covers_its_sub_folders(
    templates: Path, name: str
) -> None:
    def tags() -> list[str]:
        runtimes: tuple[Runtime, ...] = ("container", "vm")
        return [Recipe("debian-12", runtime, simulate=True).tag for runtime in runtimes]

    plain, before = Recipe("debian-12").tag, tags()
    assert before[0].startswith("gpubed-node:debian-12-simulated-")
    assert before[1].startswith("gpubed-machine:debian-12-simulated-")
    with (templates.parent / "simulation" / name).open("a") as file:
        file.write("\n")
    assert not {*before} & {*tags()}
    assert Recipe("debian-12").tag == plain
