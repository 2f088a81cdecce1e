"""What the aggregate holds of a slice: tickets, slivers, and how long."""

from dataclasses import dataclass, field
from datetime import datetime
from ipaddress import IPv4Interface

from . import urn
from .inventory import Machine
from .nodes import Reach
from .request import Interface, Node, Request


@dataclass(frozen=True)
class Limits:
    """Times in seconds; defaults are Emulab's (A8.3 of the facts)."""

    ticket: float = 600
    sliver: float = 6 * 3600
    slice: float = 6 * 3600
    maximum: float = 90 * 86400
    minimum: float = 300
    delete: float = 0.2
    """How long cleaning up takes at least."""
    reap: float = 0.0
    """How long a promise that ran out stays in the books: it can be seen, and not redeemed."""
    reload: float = 0.0
    """How long machines that were given back are loaded anew, and for nobody."""


@dataclass
class Place:
    """An interface as it was given."""

    request: Interface
    urn: str
    device: str
    mac: str
    address: IPv4Interface | None


@dataclass
class Sliver:
    """A node as it was promised or given.

    Attributes:
        stage: new or started.
        operational: State as the AM API names it.
        error: Why it failed.
    """

    urn: str
    request: Node
    machine: Machine
    host_name: str
    places: list[Place] = field(default_factory=list)
    reach: Reach | None = None
    stage: str = "new"
    operational: str = "geni_pending_allocation"
    error: str = ""

    @property
    def is_provisioned(self):
        """Whether it is more than a promise."""
        return self.reach is not None


@dataclass
class Ticket:
    """A promise: all that the slice shall have once it is redeemed."""

    request: Request
    slivers: dict[str, Sliver]
    until: datetime


@dataclass
class Slice:
    """A slice at this aggregate."""

    urn: str
    expires: datetime
    request: Request | None = None
    slivers: dict[str, Sliver] = field(default_factory=dict)
    ticket: Ticket | None = None
    users: dict[str, list[str]] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    starting: int = 0
    busy: bool = False

    @property
    def name(self):
        """The last part of its URN."""
        return urn.parse(self.urn).name

    @property
    def project(self):
        """The sub-authority of its URN."""
        return urn.parse(self.urn).authority.partition(":")[2] or "none"

    def all_slivers(self):
        """Returns each sliver once, promised or given."""
        promised = self.ticket.slivers if self.ticket else {}
        return [*{s.urn: s for s in [*self.slivers.values(), *promised.values()]}.values()]
