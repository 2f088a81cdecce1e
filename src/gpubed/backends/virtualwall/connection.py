"""The connection to one testbed for one user, and how long its calls are retried."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from gpubed.backends.virtualwall import login as logins
from gpubed.backends.virtualwall.aggregate import Aggregate, Description
from gpubed.backends.virtualwall.authority import Authority
from gpubed.backends.virtualwall.config import Config
from gpubed.backends.virtualwall.documents import Urn
from gpubed.backends.virtualwall.faults import Unanswered
from gpubed.backends.virtualwall.login import Login
from gpubed.backends.virtualwall.transport import Endpoint
from gpubed.core import progress

T = TypeVar("T")
_GROWTH, _MOST = 1.3, 2.0
_QUICK_S = 300.0  # for whatever waits for no node


class Patience:
    """The time for one task: all that the configuration allows, or `total` seconds."""

    def __init__(self, config: Config, total: float | None = None) -> None:
        self._interval, self._tries = config.poll, 0
        self._deadline = time.monotonic() + (total or config.patience)

    @property
    def left_s(self) -> float:
        """Seconds until there is no time left; 0 from then on."""
        return max(0.0, self._deadline - time.monotonic())

    def look(self) -> None:
        """Wait until the next look."""
        time.sleep(min(self._interval, self.left_s))

    def back_off(self, error: Unanswered) -> None:
        """Wait after a failed call, longer each time; raise the error again if no time is left."""
        if not self.left_s:
            raise error
        if not self._tries:
            said = f"{error.message}; trying again for {self.left_s:.0f} s at most"
            progress.emit("note", message=said)
        time.sleep(min(self._interval * min(_MOST, _GROWTH**self._tries), self.left_s))
        self._tries += 1

    def insist(self, call: Callable[[], T]) -> T:
        """Repeat an idempotent call until it is answered; raise Unanswered if no time is left."""
        while True:
            try:
                return call()
            except Unanswered as error:
                self.back_off(error)


@dataclass(frozen=True)
class Connection:
    """A user at a testbed."""

    config: Config
    login: Login
    authority: Authority
    aggregate: Aggregate

    @property
    def project(self) -> Urn:
        """The project that slices belong to."""
        return Urn(self.login.user.authority, "project", self.config.project)

    def slice_urn(self, name: str) -> str:
        """Return the usual URN of a slice of the project; the authority may name it otherwise."""
        return str(Urn(f"{self.login.user.authority}:{self.config.project}", "slice", name))

    def quick(self) -> Patience:
        """Return the patience of calls that wait for no node."""
        return Patience(self.config, min(_QUICK_S, self.config.patience))

    def describe(self, slice_urn: str) -> Description | None:
        """Return what the aggregate has of a slice; None if it has nothing."""
        credentials = self.quick().insist(lambda: self.authority.slice_credentials(slice_urn))
        return self.quick().insist(lambda: self.aggregate.describe(slice_urn, credentials))


def connect(config: Config) -> Connection:
    """Read the login, ask the aggregate for its version 3, and connect to the authorities."""
    login, context = logins.load(config), logins.context(config)

    def endpoint(url: str, what: str) -> Endpoint:
        return Endpoint(url, context, what)

    asked = Aggregate(endpoint(config.aggregate.url, "the aggregate"))
    _, url = Patience(config, min(_QUICK_S, config.patience)).insist(asked.version)
    slices = endpoint(config.authority.slices, "the slice authority")
    members = endpoint(config.authority.members, "the member authority")
    return Connection(
        config=config,
        login=login,
        authority=Authority(slices, members, login.user),
        aggregate=Aggregate(endpoint(url, "the aggregate")),
    )
