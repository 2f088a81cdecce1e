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
            found[_key(one.parent, server)] = [whose, int(written[1]) if written else None]
    return found


def of(number: int, every: Mapping[int, Process]) -> str:
    """Return the key of the login that a process is of; empty where it is of none."""
    servers = (n for n in processes.line(number, every) if every[n].name.startswith(_SERVER))
    return next((_key(n, every[n]) for n in servers), "")


def within(keys: Collection[str], every: Mapping[int, Process]) -> set[int]:
    """Return the processes of the logins that have these keys and are still there."""
    tops = {n for n, one in every.items() if _key(n, one) in keys}
    return {n for n in every if not tops.isdisjoint(processes.line(n, every))} if tops else set()


def _key(number: int, server: Process) -> str:
    return f"{number} {server.key}"


def _copies(number: int, one: Process) -> bool:
    """Say whether it may copy something for who has logged in; what people type does not."""
    if one.name.startswith(_SERVER):
        return _INTERNAL in processes.text(number, "cmdline")
    return not one.terminal
