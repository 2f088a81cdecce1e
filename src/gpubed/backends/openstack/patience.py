"""How long a cloud is waited for: once, and not again by each of the questions that follow.

A service that takes connections and says nothing would else be waited for by every try of
every question, which adds up to many minutes.
"""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import urlsplit

import requests
from keystoneauth1.session import TCPKeepAliveAdapter


class Patience(TCPKeepAliveAdapter):
    """Sends requests; fails at once what goes to a service that has just been silent.

    Args:
        seconds: How long a service may say nothing.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        self._silent_until: dict[str, float] = {}

    def send(self, request: requests.PreparedRequest, *args: Any, **options: Any) -> Any:
        """Send a request, unless it would only be waited for again.

        Raises:
            requests.Timeout: The service is silent.
        """
        service = urlsplit(str(request.url)).netloc
        if time.monotonic() < self._silent_until.get(service, 0):
            raise requests.Timeout(request=request)
        try:
            return super().send(request, *args, **options)
        except requests.Timeout:
            self._silent_until[service] = time.monotonic() + self._seconds
            raise
