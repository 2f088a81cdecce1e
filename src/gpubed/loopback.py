"""A service of the head for a browser that need not trust its certificate.

The browser speaks plain HTTP to loopback of this machine. What it says goes on in TLS, which
is checked here against the cluster's own certificate, and through SSH. The head has no other
door than before, and the service asks for its token as ever.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpubed.errors import GpubedError

ADDRESS = "127.0.0.1"
_AT_ONCE = 2**16


@dataclass(frozen=True)
class Door:
    """Where what comes in on loopback goes to.

    Attributes:
        certificate: What the service's certificate is checked against.
        host: Where the service, or a tunnel to it, listens.
        port: Its port there.
    """

    certificate: Path
    host: str
    port: int

    def hold_open(self, port: int, ready: Callable[[], None]) -> None:
        """Let browsers in until an exception, such as Ctrl-C, ends it.

        Args:
            port: The port of loopback to listen on.
            ready: Called once they can come in.

        Raises:
            GpubedError: The service does not answer, or shows another certificate.
        """
        try:
            asyncio.run(self._hold_open(port, ready))
        except OSError as error:
            raise GpubedError(f"the service on the head does not answer: {error}") from error

    async def _hold_open(self, port: int, ready: Callable[[], None]) -> None:
        context = ssl.create_default_context(cafile=str(self.certificate))

        async def far() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            return await asyncio.open_connection(
                self.host, self.port, ssl=context, server_hostname=ADDRESS
            )

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                far_reader, far_writer = await far()
            except OSError:
                writer.close()
                return
            # At the end pages are still open; Python 3.11 would print a traceback for each.
            with suppress(asyncio.CancelledError):
                await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))

        (await far())[1].close()  # else nobody would learn why pages stay empty
        async with await asyncio.start_server(relay, ADDRESS, port) as server:
            await asyncio.to_thread(ready)  # a browser in a terminal returns when it is left
            await server.serve_forever()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Hand on what comes until one side is gone."""
    try:
        while data := await reader.read(_AT_ONCE):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # the other direction notices, too
    finally:
        writer.close()
