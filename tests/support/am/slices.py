"""What the aggregate holds of a slice: tickets, slivers, and how long."""

from dataclasses import dataclass, field
from datetime import datetime

from . import names
from .inventory import Machine
from .nodes import Reach
from .request import Node, Request


@dataclass(frozen=True)
class Limits:
    """Times in seconds; defaults are Emulab's."""

    ticket: float = 600
    sliver: float = 6 * 3600
    slice: float = 6 * 3600
    maximum: float = 90 * 86400
    minimum: float = 300
    delete: float = 0.2
    reap: float = 0.0
    reload: float = 0.0


@dataclass
class Sliver:
    """A node as it was promised or, with `reach`, given; `stage` is new or started."""

    urn: str
    request: Node
    machine: Machine
    macs: dict[str, str]
    reach: Reach | None = None
    stage: str = "new"
    operational: str = "geni_pending_allocation"
    error: str = ""

    @property
    def client_id(self):
        return self.request.client_id


@dataclass
class Ticket:
    """A promise: all that the slice shall have once it is redeemed."""

    request: Request
    slivers: dict[str, Sliver]
    until: datetime


@dataclass
class Slice:
    """A slice at this aggregate; `users` has keys by login, `links` a URN by client_id."""

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
        return names.parse(self.urn).name

    @property
    def project(self):
        return names.parse(self.urn).authority.partition(":")[2] or "none"

    def all_slivers(self):
        promised = self.ticket.slivers if self.ticket else {}
        return [*{s.urn: s for s in [*self.slivers.values(), *promised.values()]}.values()]
