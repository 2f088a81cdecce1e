"""Files that are there whole or not at all, whatever happens to the disk or to us."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path


def write(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Replace a file; a reader sees the old content or the new, never a part.

    Args:
        path: The file; its folder must exist.
        content: All that it shall hold.
        mode: Its permissions, less the umask.

    Raises:
        OSError: It cannot be written; the old content stays.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(content)
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise
