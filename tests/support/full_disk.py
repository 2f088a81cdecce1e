"""A node's disk that takes nothing."""

from contextlib import contextmanager
from unittest import mock


@contextmanager
def filled(keeping, is_there):
    """Let a program of a node keep nothing on a disk."""
    replace = keeping.replace

    def full(path, text):
        if is_there(path):
            raise OSError(28, "No space left on device")
        replace(path, text)

    with mock.patch.object(keeping, "replace", full):
        yield
