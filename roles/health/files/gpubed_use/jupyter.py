"""Kernels of JupyterLab, as its servers on this node report them.

A server writes its address and token to its account's home. This program starts itself as each such
account to read them and to ask the server, so that no account can change another's result, and root
does not open their files.
"""

import http.client
import json
import os
import pwd
import ssl
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_FOLDER = ".local/share/jupyter/runtime"
_TIMEOUT_S = 5
_MOST_BYTES = 1 << 20
_MOST_SAID = 1 << 16  # a pipe's size: a process that prints more does not end in time
_MOST_KERNELS, _LONGEST, _WORDS = 200, 100, 150
_ANY = ("", "*", "::", "0.0.0.0", "localhost")  # noqa: S104  # asked there, nothing listens
Kernel = tuple[str, ...]


def kernels(uids: Iterable[int]) -> Iterator[tuple[str, list[Kernel] | str]]:
    """Yield each account with servers here, and its kernels or why they are unknown.

    A kernel is its id, the time when it was last active, and its state.
    """
    asked: list[tuple[str, subprocess.Popen[bytes] | str]] = []
    for uid in uids:
        try:
            account = pwd.getpwuid(uid)
        except KeyError:
            continue
        folder = f"{account.pw_dir}/{_FOLDER}"
        if os.path.isdir(folder):  # noqa: PTH112  # never raises, whatever is there
            asked.append((account.pw_name, _ask(folder, account)))
    until = time.monotonic() + _TIMEOUT_S
    for name, process in asked:
        yield name, process if isinstance(process, str) else _answer(process, until)


def _ask(folder: str, account: pwd.struct_passwd) -> "subprocess.Popen[bytes] | str":
    try:
        return subprocess.Popen(
            (sys.executable, "-I", __file__, folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            env={},
            user=account.pw_uid,
            group=account.pw_gid,
            extra_groups=[],
        )
    except (OSError, subprocess.SubprocessError) as error:  # as at its limit of processes
        return str(error)


def _answer(process: "subprocess.Popen[bytes]", until: float) -> list[Kernel] | str:
    try:
        code = process.wait(max(0.0, until - time.monotonic()))
        os.set_blocking(process.stdout.fileno(), False)
        return read(code, os.read(process.stdout.fileno(), _MOST_SAID))
    except subprocess.TimeoutExpired:
        process.kill()
        return f"no answer in {_TIMEOUT_S} s"
    except BlockingIOError:
        return "nothing is said"


def read(code: int, said: bytes) -> list[Kernel] | str:
    """Return the kernels in the output of an account's process, else its last line."""
    try:
        if code == 0:
            rows = json.loads(said)[:_MOST_KERNELS]
            return [tuple(str(row[place])[:_LONGEST] for place in range(3)) for row in rows]
    except (ValueError, TypeError, LookupError, RecursionError):
        pass
    words = (said.strip().splitlines() or [b""])[-1].decode(errors="replace")
    return "".join(each for each in words if each.isprintable())[:_WORDS]


def _tell(folder: str) -> None:
    """Print the kernels of this account's servers, or exit with the reason of a failure."""
    found: list[Kernel] = []
    for path in sorted(Path(folder).glob("jpserver-*.json")):
        try:
            # The file's name has the PID of the server, which may have ended.
            if Path("/proc", path.stem[9:]).stat().st_uid != os.getuid():
                continue
        except (OSError, ValueError):
            continue
        try:
            with path.open("rb") as file:
                found += _kernels_of(json.loads(file.read(_MOST_BYTES)))
        except Exception as error:  # whatever is in there
            sys.exit(f"{path}: {type(error).__name__} {error}")
    json.dump(found[:_MOST_KERNELS], sys.stdout)


def _kernels_of(server: dict[str, Any]) -> list[Kernel]:
    host = "127.0.0.1" if server["hostname"] in _ANY else server["hostname"]
    link: Any = http.client.HTTPConnection(host, server["port"], timeout=_TIMEOUT_S)
    if server["secure"]:  # address, token and this process are the account's own
        trust = ssl._create_unverified_context()  # noqa: S323
        link = http.client.HTTPSConnection(host, server["port"], timeout=_TIMEOUT_S, context=trust)
    header = {"Authorization": f"token {server['token']}"}
    # Else the look itself would count as use, and JupyterHub would stop no idle server.
    link.request("GET", f"{server['base_url']}api/kernels?no_track_activity=1", headers=header)
    answer = link.getresponse()
    if answer.status != http.client.OK:
        raise ValueError(f"port {server['port']} answers {answer.status}")
    rows = json.loads(answer.read(_MOST_BYTES))
    return [(one["id"], one["last_activity"], one["execution_state"]) for one in rows]


if __name__ == "__main__":
    _tell(sys.argv[1])
