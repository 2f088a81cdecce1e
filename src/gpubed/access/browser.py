"""Opens a service of the head in the browser; other users of this machine cannot connect.

All users can list a browser's arguments, which must not have a URL with a token. So the browser
gets a file that redirects to the URL, like JupyterLab's `use_redirect_file`.

`relay` is a proxy on loopback, from HTTP to TLS through SSH. It checks the service's certificate
against the cluster's, so that the browser need not trust it. The service still asks for its token.
All users share loopback, so the relay looks up the user of each connection.
"""

from __future__ import annotations

import asyncio
import html
import os
import platform
import pwd
import ssl
import sys
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from socket import inet_aton

from gpubed.core import secret
from gpubed.core.errors import GpubedError

ADDRESS = "127.0.0.1"
End = tuple[str, int]  # IPv4 address and port
_CHUNK = 2**16  # bytes
_CHECK_EVERY_S = 0.5
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_IN_IPV6 = bytes(10) + b"\xff\xff"
_OWNERLESS = "0"  # inode of a socket without a process, which the table lists as root's


def _of_windows() -> bool:
    """Return whether this Linux runs in Windows, whose browser cannot read files of Linux."""
    return "microsoft" in platform.release().lower()


def show(page: Path) -> bool:
    """Open a file in the browser; return whether a browser opened it."""
    return not _of_windows() and webbrowser.open(page.as_uri())


def visit(url: str, page: Path) -> bool:
    """Open a URL that contains a secret; return whether a browser opened it.

    Writes the redirect to `page`, among the cluster's secrets. The file stays, because a browser
    does not tell when it has read it; without a browser, it is removed.
    """
    target = html.escape(url)
    text = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>gpubed</title>\n'
        f'<meta http-equiv="refresh" content="0;url={target}"></head>\n'
        f'<body><a href="{target}">Go on</a></body></html>\n'
    )
    secret.write(page, text.encode())
    if show(page):
        return True
    page.unlink(missing_ok=True)
    return False


def relay(
    certificate: Path,
    service: End,
    ready: Callable[[int], None],
    require_way: Callable[[], None],
    refused: Callable[[str], None],
) -> None:
    """Relay connections of this user to a service until an exception, such as Ctrl-C, ends it.

    Raises `GpubedError` if the service does not answer, or shows another certificate.

    Args:
        service: The address and port of the service, or of a tunnel to it.
        ready: Called with the port of loopback once the relay accepts connections; any free port,
            so that no other process can take it in advance.
        require_way: Raises an exception, which ends the relay, once the service is unreachable.
        refused: Called with the name of the other user whenever a connection is refused.
    """
    asyncio.run(_relay(certificate, service, ready, require_way, refused))


async def _relay(
    certificate: Path,
    service: End,
    ready: Callable[[int], None],
    require_way: Callable[[], None],
    refused: Callable[[str], None],
) -> None:
    async def reach() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*service, ssl=context, server_hostname=ADDRESS)

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own, peer = (writer.get_extra_info(end) for end in ("sockname", "peername"))
        if user := stranger(peer, own):
            writer.transport.abort()
            refused(user)
            return
        try:
            far_reader, far_writer = await reach()
        except OSError:
            writer.close()
            return
        # Pages are still open when the relay ends; Python 3.11 would print a traceback for each.
        with suppress(asyncio.CancelledError):
            await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))

    async def watch() -> None:
        while True:
            require_way()
            await asyncio.sleep(_CHECK_EVERY_S)

    try:  # reports an error before the browser shows an empty page
        context = ssl.create_default_context(cafile=str(certificate))
        (await reach())[1].close()
    except OSError as error:
        raise GpubedError(f"the service on the head does not answer: {error}") from error
    async with await asyncio.start_server(pass_on, ADDRESS, 0) as server:
        port = server.sockets[0].getsockname()[1]
        # In a thread, because a browser in the terminal returns only once its user quits it.
        await asyncio.gather(asyncio.to_thread(ready, port), watch())


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on data until one side closes."""
    try:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # the other direction notices, too
    finally:
        writer.close()


def stranger(peer: End, own: End) -> str:
    """Return the user at the other end, `peer`, of a connection on loopback.

    Empty for this process's user, or the user who started it with sudo. Also empty where it is
    unknown: on macOS, and on Linux in Windows, whose browser is outside.
    """
    if _of_windows() or not _TABLES[0].exists():
        return ""
    uid = _owner(peer, own)
    if uid is None:
        return "an unknown user"
    if str(uid) in (str(os.getuid()), os.environ.get("SUDO_UID")):
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _owner(peer: End, own: End) -> int | None:
    # A program may use an IPv6 socket for IPv4.
    ends = {(_written(peer, before), _written(own, before)) for before in (b"", _IN_IPV6)}
    for table in _TABLES:
        for line in table.read_text().splitlines() if table.exists() else ():
            _, local, remote, _, _, _, _, uid, _, inode, *_ = line.split()
            if (local, remote) in ends and inode != _OWNERLESS:
                return int(uid)
    return None


def _written(end: End, before: bytes) -> str:
    """Format address and port as the kernel does: 32-bit words in this machine's byte order."""
    address = before + inet_aton(end[0])
    words = [address[at : at + 4] for at in range(0, len(address), 4)]
    written = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
    return f"{written}:{end[1]:04X}"
