"""Simulated GPUs: the packages that are offered, and what the kernel is made to say."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from string import Template
from typing import Any

import pytest
import yaml

from gpubed.backends.local.spec_checks import facts_of
from gpubed.cli import status_view
from gpubed.core import paths
from gpubed.recipes.recipe import load, with_gpus
from simulated_gpus import IMAGE, models

SUITES = {"Debian 12": "bookworm", "Debian 13": "trixie"}


def offered(suite: str) -> dict[str, set[str]]:
    """Return the versions of each package that the archive of a suite has."""
    found: dict[str, set[str]] = {}
    text = (IMAGE / "archive" / "packages.toml").read_text(encoding="utf-8")
    for family in tomllib.loads(text)["family"]:
        for full in family.get("versions") or family["suites"].get(suite, []):
            for package in family["package"]:
                name = Template(package["name"]).substitute(branch=full.partition(".")[0])
                found.setdefault(name, set()).add(full)
    return found


def catalog() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield suite, source and entry of all that the role nvidia_driver installs on Debian."""
    path = paths.assets() / "roles" / "nvidia_driver" / "vars" / "Debian.yml"
    sources = yaml.safe_load(path.read_text(encoding="utf-8"))["__nvidia_driver_catalog"]
    for source, entries in sources.items():
        for entry in entries:
            for release, suite in SUITES.items():
                if entry["release"] in ("", release):
                    yield suite, source, entry


@pytest.mark.parametrize(("suite", "source", "entry"), list(catalog()))
def test_archive_has_every_package_that_the_role_installs(
    suite: str, source: str, entry: dict[str, Any]
) -> None:
    names = [*entry["libraries"], entry["dkms"], entry["open_dkms"], "nvidia-persistenced"]
    for name in filter(None, names):
        branches = {full.partition(".")[0] for full in offered(suite)[name]}
        assert str(entry["branch"]) in branches or name == "nvidia-persistenced"


def test_every_recipe_finds_a_driver_in_the_archive() -> None:
    for name in with_gpus():
        versions = offered("bookworm")["nvidia-driver-cuda"]
        assert any(load(name).gpus.accept(version.partition("-")[0]) for version in versions)


def test_status_says_which_gpus_are_simulated() -> None:
    facts = facts_of(models()["T4"], 2).summary()
    assert "(simulated)" in status_view.hardware(facts)
    assert "(simulated)" not in status_view.hardware(facts | {"simulated": None})
