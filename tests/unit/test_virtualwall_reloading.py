"""Machines that were given back are waited for by whoever goes on, whichever process that is."""

import os
import time

import pytest

from gpubed.backends.virtualwall import reloading
from gpubed.core.paths import Project


@pytest.fixture
def paths(tmp_path):
    return Project(tmp_path).cluster("lab")


def test_they_are_waited_for_by_their_cluster_alone(paths, tmp_path):
    assert not reloading.goes_on(paths, 2700)
    reloading.begin(paths)
    assert reloading.goes_on(Project(tmp_path).cluster("lab"), 2700)
    assert not reloading.goes_on(Project(tmp_path).cluster("other"), 2700)


@pytest.mark.parametrize(("ago", "patience", "goes_on"), [(60, 2700, True), (60, 90, False)])
def test_not_for_ever(paths, ago, patience, goes_on):
    reloading.begin(paths)
    then = time.time() - ago
    os.utime(paths.state / "given_back", (then, then))
    assert reloading.goes_on(paths, patience) is goes_on
