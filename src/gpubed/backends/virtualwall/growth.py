"""Nodes that the testbed did not have join a slice that runs, once it has them.

Emulab alone changes a slice in place. Elsewhere nothing is given up for a node more.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from gpubed.backends.virtualwall import verdict
from gpubed.backends.virtualwall.aggregate import Description
from gpubed.backends.virtualwall.faults import Answered, Busy, NoResources
from gpubed.backends.virtualwall.reservation import Reservation, unmappable
from gpubed.core import progress


class Growth(Reservation):
    """One cluster's slice, which may lack nodes."""

    def complete(self) -> Description | None:
        """Ask again for nodes that the testbed did not have; those that are there stay.

        Returns:
            What the slice is then; None when it is gone.
        """
        found = self.look()
        missing = verdict.missing(self.judge(found), self.wanted) if found else {}
        if found is None or (self._is_done(found) and not missing):
            return found
        if missing and not found.has_ticket:
            self._add(missing)
        return self.hold()

    def _add(self, missing: Mapping[str, str]) -> None:
        """Ask for as many more nodes as can be had."""
        patience, more, why = self._quick(), list(missing), {**self.journal.left_out, **missing}
        while more:
            # Written down first: what a killed run asked for must not count as left out.
            self._save(left_out={name: why[name] for name in why if name not in more})
            text = self._request(self.journal.left_out)
            try:
                with self._calling("Update"):
                    patience.insist(partial(self._update, text))
                return
            except NoResources as error:
                fixed = unmappable(error)
                name = fixed if fixed in more else more[-1]
                more.remove(name)
                why[name] = error.message
            except Busy:
                raise
            except Answered as error:
                progress.emit(
                    "note",
                    message=f"{', '.join(missing)} cannot join a slice that runs: {error.message}; "
                    f"gpubed down {self.wanted.cluster}, then up, asks for all nodes anew",
                )
                more = []
        self._save(calling=None, left_out=why)

    def _update(self, text: str) -> None:
        self._there.aggregate.update(self.urn, self._credentials, text)
