"""What all tests need."""

import os
import re
import signal
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Before gRPC is loaded: its handlers of forks end a process that serves calls and starts others.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

# A shell starts background jobs deaf to Ctrl-C, and so would be whatever is started
# here; a handler of our own is not inherited, children get the default.
signal.signal(signal.SIGINT, signal.default_int_handler)
# And nohup, to the end of a terminal.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)


@pytest.fixture(autouse=True)
def _signals():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With `--dist loadgroup`, keep on one worker what shares a cluster: a file, or the session's.

    Marks do not do it: xdist 3.8 writes groups where pytest 9.2 does not look for them.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByCluster(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.split("::", 1)[0]
            return "cluster" if _takes_the_sessions_cluster(ROOT / file) else file

    return ByCluster(config, log)


@cache
def _takes_the_sessions_cluster(file):
    text = file.read_text()
    asks = re.search(
        r"^(def test_\w+|@pytest\.fixture.*\ndef \w+)\([^)]*\bcluster\b", text, re.MULTILINE
    )
    return file.parent.name == "e2e" and bool(asks) and "def cluster(" not in text
