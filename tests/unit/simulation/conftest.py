"""The pretended driver, compiled once with this machine's compiler."""

import shutil

import pytest

from support import simulated

VERSION = "580.82.07"


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    if not shutil.which("cc") or not shutil.which("make"):
        pytest.skip("no C compiler here")
    return simulated.compile_library(VERSION, tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def driver(libraries, tmp_path):
    return simulated.Driver(libraries, VERSION, tmp_path / "nvml")
