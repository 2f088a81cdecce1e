"""The connection to one testbed for one user."""

from __future__ import annotations

from dataclasses import dataclass

from gpubed.backends.virtualwall import login as logins
from gpubed.backends.virtualwall.aggregate import Aggregate, Description
from gpubed.backends.virtualwall.authority import Authority
from gpubed.backends.virtualwall.config import Config
from gpubed.backends.virtualwall.documents import Urn
from gpubed.backends.virtualwall.login import Login
from gpubed.backends.virtualwall.transport import Endpoint, Patience

_QUICK_S = 300.0  # for whatever waits for no node


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

    def patience(self, total: float | None = None) -> Patience:
        """Return the patience of a task: all that the configuration allows, or `total` seconds."""
        return Patience(self.config.poll, total or self.config.patience)

    def describe(self, slice_urn: str) -> Description | None:
        """Return what the aggregate has of a slice; None if it has nothing."""
        return self.aggregate.describe(slice_urn, self.authority.slice_credentials(slice_urn))


def connect(config: Config) -> Connection:
    """Read the login, ask the aggregate for its version 3, and connect to the authorities."""
    login, context = logins.load(config), logins.context(config)

    def endpoint(url: str, what: str) -> Endpoint:
        return Endpoint(url, context, what, config.poll, min(_QUICK_S, config.patience))

    _, url = Aggregate(endpoint(config.aggregate.url, "the aggregate")).version()
    slices = endpoint(config.authority.slices, "the slice authority")
    members = endpoint(config.authority.members, "the member authority")
    authority = Authority(slices, members, login.user)
    return Connection(config, login, authority, Aggregate(endpoint(url, "the aggregate")))
