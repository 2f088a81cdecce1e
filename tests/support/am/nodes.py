"""What becomes of slivers: nothing (`Ghosts`), or real nodes (see `machines`)."""

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass


class NodeBroken(Exception):
    """A node did not start; the text goes into `geni_error`."""


@dataclass(frozen=True)
class Reach:
    """Where a node answers SSH."""

    host: str
    port: int = 22
    control_address: str | None = None


class Nodes(ABC):
    """Makes nodes of slivers. Methods may be called from several threads, one per sliver."""

    max_links = 4
    """Experiment interfaces of one node."""

    @abstractmethod
    def reach(self, sliver):
        """Returns where a sliver's node will answer; called once, before it starts."""

    @abstractmethod
    def start(self, slice_, sliver):
        """Brings a node to where SSH answers; raises NodeBroken."""

    @abstractmethod
    def restart(self, slice_, sliver):
        """Boots a node again; raises NodeBroken."""

    @abstractmethod
    def remove(self, slice_, slivers):
        """Removes nodes, and what only they used; what is gone already is no error."""

    @abstractmethod
    def close(self):
        """Removes everything."""


class Ghosts(Nodes):
    """Slivers that are only states.

    Args:
        domain: Of the site; nodes get names in it that nobody resolves.
        boot_seconds: How long a start takes.
    """

    def __init__(self, domain, boot_seconds=0.1):
        self._domain, self._boot_seconds, self._given = domain, boot_seconds, 0

    def reach(self, sliver):
        """Returns a name; a virtual machine without an address of its own shares its host's."""
        self._given += 1
        if sliver.request.virtual and not sliver.request.public_ip:
            return Reach(f"{sliver.machine.name}.{self._domain}", 31000 + self._given)
        name = f"{sliver.machine.name}.{self._domain}"
        return Reach(name, 22, f"10.2.33.{self._given % 250 + 1}")

    def start(self, slice_, sliver):
        """Waits."""
        time.sleep(self._boot_seconds)

    def restart(self, slice_, sliver):
        """Waits."""
        self.start(slice_, sliver)

    def remove(self, slice_, slivers):
        """Does nothing."""

    def close(self):
        """Does nothing."""
