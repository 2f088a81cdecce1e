"""The file backend's stack locks, in the CLI's format."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

from pydantic import BaseModel, PositiveInt

from gpubed.core import files, reading
from gpubed.core.errors import Locked, unwritable
from gpubed.core.reading import Unreadable
from gpubed.engines.embedded.checkpoint import timestamp


class _Holder(BaseModel):
    pid: PositiveInt
    username: str
    hostname: str
    timestamp: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} of {self.username} on {self.hostname} since {self.timestamp}"

    def has_ended(self) -> bool:
        """Return whether the process, of this host, has ended; a zombie has."""
        if self.hostname != socket.gethostname():
            return False
        try:
            os.kill(self.pid, 0)
            # A zombie has no memory.
            statm = Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii")
        except ProcessLookupError:
            return True
        except (OSError, OverflowError):
            return False
        return statm.startswith("0 ")


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Hold the stack's lock; raise `Locked` if another run holds it.

    Check, write, check again, as the CLI does: of two runs that start together, both see the other
    and both give way.
    """
    require_free(folder)
    own = folder / f"{uuid.uuid4()}.json"
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    host = socket.gethostname()
    holder = {"pid": os.getpid(), "username": user, "hostname": host, "timestamp": timestamp()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files.write(own, json.dumps(holder).encode())
    except OSError as error:
        raise unwritable(error, own) from error
    try:
        require_free(folder, own)
        yield
    finally:
        own.unlink(missing_ok=True)


def require_free(folder: Path, own: Path | None = None) -> None:
    """Remove the locks of ended processes; raise `Locked` if another run holds the stack."""
    for path in sorted(folder.glob("*.json")):
        if path == own:
            continue
        holder = None
        with contextlib.suppress(Unreadable):
            holder = reading.file(path).json(_Holder)
        if holder and holder.has_ended():
            path.unlink(missing_ok=True)
            continue
        raise Locked(
            f"the stack is locked by {holder or f'a run whose lock cannot be read: {path}'}",
            f"wait for it; if it is gone: rm {quote(str(path))}",
        )
