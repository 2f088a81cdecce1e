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

from gpubed.access import peers
from gpubed.core.errors import GpubedError

ADDRESS = "127.0.0.1"
_AT_ONCE = 2**16
_LOOK_EVERY_S = 0.5


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

    def hold_open(
        self,
        ready: Callable[[int], None],
        require_way: Callable[[], None],
        refused: Callable[[str], None],
    ) -> None:
        """Let this user's browsers in until an exception, such as Ctrl-C, ends it.

        Args:
            ready: Called with the port of loopback once they can come in; any free one, so
                that nobody can wait for it.
            require_way: Raises what shall end it once the service cannot be reached any more.
            refused: Called with each other user who tried to come in.

        Raises:
            GpubedError: The service does not answer, or shows another certificate.
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
            # At the end pages are still open; Python 3.11 would print a traceback for each.
            with suppress(asyncio.CancelledError):
                await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))

        async with await asyncio.start_server(relay, ADDRESS, 0) as server:
            port = server.sockets[0].getsockname()[1]
            # A browser in a terminal returns when it is left.
            await asyncio.gather(asyncio.to_thread(ready, port), _watch(require_way))

    async def _greet(self) -> ssl.SSLContext:
        """Meet the service once, else nobody would learn why pages stay empty."""
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
    """Hand on what comes until one side is gone."""
    try:
        while data := await reader.read(_AT_ONCE):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # the other direction notices, too
    finally:
        writer.close()
