"""What logins without a terminal carry: copies by scp, sftp, rsync and the like, however slow.

It is what the SSH server has written for a login, to its commands and to whoever has logged in.
One that was forgotten carries no more than signs of life.
"""

import re
from collections.abc import Collection, Mapping

from gpubed_use import processes
from gpubed_use.processes import Process

# `sshd`, and `sshd-session` of OpenSSH 9.8 and later.
_SERVER = "sshd"
# A command of the server's own, which has its name.
_INTERNAL = "@internal-sftp"
_WRITTEN = re.compile(r"^wchar: (\d+)$", re.MULTILINE)


def carried(every: Mapping[int, Process], mine: Collection[int]) -> dict[str, list[object]]:
    """Return whose each login without a terminal is, and the bytes that it has carried so far.

    They are None where they may not be read, as by root of a confined container. A login that
    only forwards ports has no command, and is none of these.

    Args:
        every: All processes.
        mine: Those that somebody started, without whoever asks.
    """
    found: dict[str, list[object]] = {}
    for number in sorted(mine):
        one = every[number]
        server = every.get(one.parent)
        if server and server.name.startswith(_SERVER) and _copies(number, one):
            written = _WRITTEN.search(processes.text(one.parent, "io"))
            whose = processes.user_of(one.uid)
            found[f"{one.parent} {server.key}"] = [whose, int(written[1]) if written else None]
    return found


def _copies(number: int, one: Process) -> bool:
    """Say whether it may copy something for who has logged in; what people type does not."""
    if one.name.startswith(_SERVER):
        return _INTERNAL in processes.text(number, "cmdline")
    return not one.terminal
