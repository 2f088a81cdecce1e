"""What processes listen on, read from /proc, and who else may connect to it."""

import os
import re
import socket
from contextlib import suppress
from pathlib import Path

NOBODY = 65534
_SOCKET = re.compile(r"^socket:\[(\d+)\]$")
_TCP_LISTEN = "0A"
_UNIX_LISTEN = "00010000"  # __SO_ACCEPTCON


def tcp(pids):
    """Return the TCP ports on which any of the processes listens, on whatever address."""
    own, ports = _inodes(pids), set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _TCP_LISTEN and fields[9] in own:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def unix(pids):
    """Return the paths of the sockets on which any of the processes listens; abstract ones start
    with @."""
    own, paths = _inodes(pids), set()
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if fields[3] == _UNIX_LISTEN and fields[6] in own:
            paths.add(fields[7] if len(fields) > 7 else "")
    return paths


def lets_in(path, uid):
    """Say whether a user may connect to a socket; asking for another user needs root."""
    os.seteuid(uid)
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(f"\0{path[1:]}" if path.startswith("@") else path)
    except PermissionError:
        return False
    finally:
        os.seteuid(os.getuid())
    return True


def _inodes(pids):
    found = set()
    for pid in pids:
        # It may end while we look.
        with suppress(OSError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    found.update(_SOCKET.findall(str(descriptor.readlink())))
    return found
