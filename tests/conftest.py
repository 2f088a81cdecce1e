"""What all tests need."""

import os
import signal

import pytest

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
    """Take back the handlers of a verb that ran in this process: they would end all tests."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def pytest_itemcollected(item):
    """Keep on one worker what shares a cluster: the one of the session, else a file's own."""
    shared = "cluster" in getattr(item, "fixturenames", ()) and item.path.parent.name == "e2e"
    shared = shared and not hasattr(item.module, "cluster")
    item.add_marker(pytest.mark.xdist_group("cluster" if shared else item.path.stem))
