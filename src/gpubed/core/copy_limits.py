"""How much one copy from a node may be: whoever is root there decides what its server says."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import paramiko

from gpubed.core import files, reading
from gpubed.core.errors import GpubedError
from gpubed.core.units import duration

_MOST = 500_000  # things in all; each is asked for by itself, and their names wait in memory
_LONGEST_NAME = 255  # bytes; nothing here can have a longer one
_LONGEST_S = 2 * 3600.0  # for what has no bytes
_SLOWEST = 100 * 2**10  # bytes a second: what comes so slowly takes no longer than it must
_LOOK_S = 5.0
_HINT = "no run writes so much, and no network is so slow: look at the node"


class Beyond(GpubedError):
    """A server says more, or takes longer, than results do; what came until then is here."""


@dataclass
class Limits:
    """What a copy has taken so far.

    Attributes:
        what: What is copied.
        things: How many files, folders and others were listed.
        came: Bytes of files.
    """

    what: str
    things: int = 0
    came: int = 0

    def list(self, name: bytes, folder: str) -> None:
        """Count a thing that a folder has.

        Raises:
            Beyond: It is one more than there may be, or has no name that a file can have.
        """
        self.things += 1
        if self.things <= _MOST and len(name) <= _LONGEST_NAME:
            return
        many = f"more than {_MOST} things are listed in {self.what}, the last ones"
        what = f"a name of {len(name)} bytes is listed" if self.things <= _MOST else many
        raise Beyond(f"{what} in {reading.short(folder, 200)!r}", _HINT)

    @contextmanager
    def in_time(self, sftp: paramiko.SFTPClient) -> Iterator[None]:
        """Close the connection once the copy takes too long, wherever it waits.

        What a server sends may keep paramiko itself busy without end.

        Raises:
            Beyond: It took too long.
        """
        started, over, ended = time.monotonic(), threading.Event(), threading.Event()

        def watch() -> None:
            while not ended.wait(_LOOK_S):
                if time.monotonic() - started > _LONGEST_S + self.came / _SLOWEST:
                    over.set()
                    sftp.close()
                    return

        threading.Thread(target=watch, daemon=True).start()
        try:
            yield
        except Exception:
            if not over.is_set():
                raise
            took = duration(time.monotonic() - started)
            raise Beyond(
                f"after {took}, {self.what} was not wholly here: {files.size(self.came)} have come",
                _HINT,
            ) from None
        finally:
            ended.set()
