"""What becomes of slivers: nothing (`Ghosts`); see also `doors` and `machines`.

Each has `reach` (where a sliver's node will answer, called once, before it starts), `start` and
`restart` (which raise NodeBroken), `remove` and `close`. Slivers start in threads of their own.
"""

import time
from dataclasses import dataclass


class NodeBroken(Exception):
    """A node did not start; the text goes into `geni_error`."""


@dataclass(frozen=True)
class Reach:
    """Where a node answers SSH."""

    host: str
    port: int = 22
    control_address: str | None = None


class Ghosts:
    """Slivers that are only states, with names in `domain` that nobody resolves."""

    def __init__(self, domain, boot_seconds=0.1):
        self._domain, self._boot_seconds, self._given = domain, boot_seconds, 0

    def reach(self, sliver):
        self._given += 1
        name = f"{sliver.machine.name}.{self._domain}"
        return Reach(name, 22, f"10.2.33.{self._given % 250 + 1}")

    def start(self, slice_, sliver):
        time.sleep(self._boot_seconds)

    def restart(self, slice_, sliver):
        self.start(slice_, sliver)

    def remove(self, slice_, slivers):
        pass

    def close(self):
        pass
