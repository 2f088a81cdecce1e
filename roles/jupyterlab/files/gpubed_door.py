"""Access to JupyterLab: requests for one of its own host names, with its token.

Part of its configuration: `c.ServerApp.identity_provider_class = Door`.
"""

from __future__ import annotations

import asyncio
import http

from jupyter_server.auth import User
from jupyter_server.auth.identity import PasswordIdentityProvider
from tornado import web
from traitlets import Float, List, Unicode


class Door(PasswordIdentityProvider):
    """Checks token and host name; requests with wrong tokens are delayed, one after another."""

    hosts = List(Unicode(), config=True, help="names and addresses that the server answers to")
    wait_s = Float(1.0, config=True, help="what each wrong token costs, in seconds")

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)
        self._turn = asyncio.Lock()

    async def get_user(self, handler: web.RequestHandler) -> User | None:
        """Return the user; refuse foreign hosts, which is how pages of others ask (DNS rebinding).

        Raises:
            web.HTTPError: The browser took this server for another.
        """
        if handler.request.host_name not in self.hosts:
            # Writing the refusal asks for the user again.
            handler.current_user = handler._jupyter_current_user = None
            raise web.HTTPError(http.HTTPStatus.MISDIRECTED_REQUEST)
        user = await super().get_user(handler)
        if user is None and (self.get_token(handler) or handler.request.method == "POST"):
            async with self._turn:
                await asyncio.sleep(self.wait_s)
        return user
