"""What the kernels of JupyterLab do, as its own servers on this node say.

A server leaves its address and token in its account's home; root asks with that account's token.
"""

import http.client
import json
import os
import pwd
import socket
import ssl
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpubed_use.processes import Process

_FOLDER = ".local/share/jupyter/runtime"
_TIMEOUT_S = 5
_MOST_BYTES = 1 << 20
_ANY = {"", "*", "::", "0.0.0.0", "localhost"}  # noqa: S104  # asked there, nothing listens


class Mute(Exception):
    """A server does not answer, or nothing that can be read."""


def kernels(processes: Mapping[int, Process]) -> Iterator[tuple[str, str, str, str]]:
    """Yield each kernel: whose it is, its id, when it last did something, and its state.

    Raises:
        Mute: A server that runs does not tell.
    """
    for uid in sorted({one.uid for one in processes.values()}):
        try:
            account = pwd.getpwuid(uid)
        except KeyError:
            continue
        for path in sorted((Path(account.pw_dir) / _FOLDER).glob("jpserver-*.json")):
            server = _server(path, uid)
            running = processes.get(server["pid"]) if server else None
            if server and running and running.uid == uid:
                for kernel in _ask(server):
                    yield account.pw_name, *kernel


def _server(path: Path, uid: int) -> dict[str, Any] | None:
    """Return what a server says of itself; None where the file is no such, or another's."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(number, "rb") as file:
        found = os.fstat(number)
        if found.st_uid != uid or not stat.S_ISREG(found.st_mode):
            return None
        with suppress(ValueError):
            told = json.loads(file.read(_MOST_BYTES))
            if isinstance(told, dict) and isinstance(told.get("pid"), int):
                return told
    return None


def _here(host: str) -> str:
    """Return the address at which a server of this node answers.

    Raises:
        OSError: It is no address of this node: an account may write any into its file.
    """
    if host in _ANY:
        return "127.0.0.1"
    family, kind, protocol, _, where = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as trial:
        trial.bind(where)  # the kernel lets nobody have an address that is not here
    return str(where[0])


def _ask(server: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    try:
        where = (_here(str(server["hostname"])), int(server["port"]))
        if server["secure"]:
            # The way does not leave this node (`_here`), and the token is the server's own.
            trust = ssl._create_unverified_context()  # noqa: S323
            link: Any = http.client.HTTPSConnection(*where, timeout=_TIMEOUT_S, context=trust)
        else:
            link = http.client.HTTPConnection(*where, timeout=_TIMEOUT_S)
        try:
            header = {"Authorization": f"token {server['token']}"}
            link.request("GET", f"{server['base_url']}api/kernels", headers=header)
            answer = link.getresponse()
            text = answer.read(_MOST_BYTES)
            if answer.status != http.client.OK:
                raise Mute(f"JupyterLab on port {where[1]} answers {answer.status}")
            found = [
                (str(one["id"]), str(one["last_activity"]), str(one["execution_state"]))
                for one in json.loads(text)
            ]
        finally:
            link.close()
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException) as error:
        name = type(error).__name__
        raise Mute(f"JupyterLab on port {server.get('port')} does not tell: {name}") from None
    yield from found
