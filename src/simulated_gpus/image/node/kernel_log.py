"""Messages of the kernel, as its NVIDIA driver writes them.

A machine has a real kernel log. In a container, the FIFO of gpubed-kmsg.service stands for it,
and the journal reads it as it would read the kernel's own.
"""

import fcntl
import os
import stat
import time
from pathlib import Path

_KMSG = Path("/dev/kmsg")
_SEQUENCE = Path("/run/gpubed-simulation/kmsg-sequence")
_WARNING = 4


def say(text: str) -> None:
    """Let the kernel say a line."""
    log = os.open(_KMSG, os.O_RDWR | os.O_NONBLOCK if _is_fifo() else os.O_WRONLY)
    try:
        if _is_fifo():
            # One record is one packet: the journal takes what it reads at once for one.
            fcntl.fcntl(log, fcntl.F_SETFL, fcntl.fcntl(log, fcntl.F_GETFL) | os.O_DIRECT)
            os.write(log, _record(text))
        else:
            # What a program writes is a program's; this is the name that the kernel's lines have.
            os.write(log, f"<{_WARNING}>kernel: {text}".encode())
    finally:
        os.close(log)


def _is_fifo() -> bool:
    return stat.S_ISFIFO(_KMSG.stat().st_mode)


def _record(text: str) -> bytes:
    """Return a record of /dev/kmsg (Documentation/ABI/testing/dev-kmsg of the kernel)."""
    number = int(_SEQUENCE.read_text()) + 1 if _SEQUENCE.exists() else 0
    _SEQUENCE.write_text(str(number))
    return f"{_WARNING},{number},{time.monotonic_ns() // 1000},-;{text}\n".encode()
