"""What all tests need."""

import signal

import pytest

# A shell starts background jobs deaf to Ctrl-C, and so would be whatever is started
# here; a handler of our own is not inherited, children get the default.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _signals():
    """Take back the handlers of a verb that ran in this process: they would end all tests."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
