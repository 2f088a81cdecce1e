"""Relays a browser to a service of the head, without the browser trusting its certificate.

The browser speaks plain HTTP to loopback of this machine. The data goes on in TLS, checked here
against the cluster's own certificate, and through SSH. No further port of the head is opened, and
the service still asks for its token.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpubed.access import peers
from gpubed.core.errors import GpubedError

ADDRESS = "127.0.0.1"
_AT_ONCE = 2**16
_LOOK_EVERY_S = 0.5


@dataclass(frozen=True)
class Door:
    """A relay from loopback to a service."""

    certificate: Path  # the certificate that the service's own is checked against
    host: str  # address at which the service, or a tunnel to it, listens
    port: int

    def hold_open(
        self,
        ready: Callable[[int], None],
        require_way: Callable[[], None],
        refused: Callable[[str], None],
    ) -> None:
        """Relay connections of this user until an exception, such as Ctrl-C, ends it.

        Raises `GpubedError` if the service does not answer, or shows another certificate.

        Args:
            ready: Called with the port of loopback once connections are accepted; it is any free
                port, so that no other process can take it in advance.
            require_way: Raises the exception that ends the relay once the service cannot be
                reached.
            refused: Called with the name of each other user whose connection was refused.
        """
        asyncio.run(self._hold_open(ready, require_way, refused))

    async def _hold_open(
        self,
        ready: Callable[[int], None],
        require_way: Callable[[], None],
        refused: Callable[[str], None],
    ) -> None:
        context = await self._greet()

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            here, there = (writer.get_extra_info(end) for end in ("sockname", "peername"))
            if who := peers.stranger(there, here):
                writer.transport.abort()
                refused(who)
                return
            try:
                far_reader, far_writer = await self._far(context)
            except OSError:
                writer.close()
                return
            # Pages are still open when the relay ends; Python 3.11 would print a traceback for
            # each.
            with suppress(asyncio.CancelledError):
                await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))

        async with await asyncio.start_server(relay, ADDRESS, 0) as server:
            port = server.sockets[0].getsockname()[1]
            # A browser in a terminal returns only once its user quits it, hence the thread.
            await asyncio.gather(asyncio.to_thread(ready, port), _watch(require_way))

    async def _greet(self) -> ssl.SSLContext:
        """Connect to the service once, so that an error is reported here, not as an empty page."""
        try:
            context = ssl.create_default_context(cafile=str(self.certificate))
            (await self._far(context))[1].close()
        except OSError as error:
            raise GpubedError(f"the service on the head does not answer: {error}") from error
        return context

    async def _far(
        self, context: ssl.SSLContext
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(
            self.host, self.port, ssl=context, server_hostname=ADDRESS
        )


async def _watch(require_way: Callable[[], None]) -> None:
    while True:
        require_way()
        await asyncio.sleep(_LOOK_EVERY_S)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on data until one side closes."""
    try:
        while data := await reader.read(_AT_ONCE):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # the other direction notices, too
    finally:
        writer.close()
