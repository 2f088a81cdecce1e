"""A unit test that starts a process is marked `process`; `make test` runs the others."""

import os
import sys
from pathlib import Path

import pytest

from support.imagenet import job
from support.node_looks import health
from support.node_use import use

__all__ = ["health", "job", "use"]
# Of `sys.addaudithook`; the others that start a process lead to these.
STARTS = {"subprocess.Popen", "os.posix_spawn", "os.system", "os.fork", "os.forkpty"}
QUICK = {"ssh-keygen"}  # which looks names up in known_hosts within milliseconds
started = []


def note(event, given):
    if event in STARTS:
        name = Path(os.fsdecode(given[0])).name if given else "a copy of itself"
        started.extend({name} - QUICK)


sys.addaudithook(note)


def pytest_runtest_logstart():
    """Forget what began before: when tests were collected, or by tests of another folder."""
    started.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Fail the test in whose setup, call or teardown a process was started, unless it is marked."""
    report = yield
    programs, started[:] = [*started], []
    if programs and not item.get_closest_marker("process"):
        report.outcome = "failed"
        report.longrepr = f"starts {programs[0]}: mark the test `process`"
    return report
