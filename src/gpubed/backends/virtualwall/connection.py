"""Everything that talks to one testbed for one user."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

from gpubed.backends.virtualwall import journal
from gpubed.backends.virtualwall import login as logins
from gpubed.backends.virtualwall.aggregate import Aggregate
from gpubed.backends.virtualwall.authority import Authority
from gpubed.backends.virtualwall.config import Config
from gpubed.backends.virtualwall.login import Login
from gpubed.backends.virtualwall.patience import Patience
from gpubed.backends.virtualwall.transport import Endpoint
from gpubed.backends.virtualwall.urn import Urn
from gpubed.core import reading
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths
from gpubed.testbeds.reach import Reach

_DISCOVERY_S = 120.0


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
        """Return what a slice of the project is called at most authorities.

        Others name it in another way: what counts is what they answer when it is made.
        """
        return str(Urn(f"{self.login.user.authority}:{self.config.project}", "slice", name))


def connect(config: Config) -> Connection:
    """Read the login, ask the aggregate where its version 3 is, and meet the authorities.

    Raises:
        LoginRefused: The login cannot be used.
        Unanswered: Nobody answers.
    """
    login = logins.load(config)
    context = logins.context(config)
    asked = Aggregate(Endpoint(config.aggregate.url, context, "the aggregate"))
    version = Patience.of(config, min(_DISCOVERY_S, config.patience)).insist(asked.version)
    return Connection(
        config=config,
        login=login,
        authority=Authority(
            Endpoint(config.authority.slices, context, "the slice authority"),
            Endpoint(config.authority.members, context, "the member authority"),
            login.user,
        ),
        aggregate=Aggregate(Endpoint(version.url, context, "the aggregate")),
    )


def config_of(reach: Reach, paths: ClusterPaths) -> Config:
    """Return how a cluster's testbed is reached: as its specification says, else its journal.

    Raises:
        GpubedError: Neither says it, or the journal in a way that this version does not take.
    """
    try:
        config = reach.specification.backend
    except GpubedError:
        # Former versions kept no copy of what they applied.
        if reach.is_former or (known := journal.load(paths)) is None:
            raise
        try:
            return known.testbed.config()
        except ValidationError as error:
            where = ".".join(map(str, error.errors()[0]["loc"]))
            raise reading.Unreadable(
                f"{paths.state / journal.FILE} says in a way that this version does not take how "
                f"the testbed is reached: {where}",
                f"restore {paths.spec}, which counts before that",
            ) from None
    assert isinstance(config, Config)  # noqa: S101  # its kind was asked for
    return config
