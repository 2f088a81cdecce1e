"""How long the testbed keeps a slice, and asking for more.

Two ends must move, in this order: the slice's at its authority, then the slivers' at the
aggregate, which believes the expiry inside the slice's credential, so that is fetched anew
in between. What counts is what the aggregate says afterwards.
"""

from __future__ import annotations

from datetime import datetime

from gpubed.backends.virtualwall import times
from gpubed.backends.virtualwall.aggregate import Description
from gpubed.backends.virtualwall.authority import Slice
from gpubed.backends.virtualwall.connection import Connection
from gpubed.backends.virtualwall.faults import Answered, Busy, NotThere
from gpubed.backends.virtualwall.patience import Patience
from gpubed.core import progress
from gpubed.core.errors import Refused


def granted(there: Connection, slice_urn: str) -> datetime:
    """Return when the first of slice and slivers ends.

    Raises:
        NotThere: There is no such slice any more.
    """
    patience = Patience.of(there.config, min(300.0, there.config.patience))
    found = _slice(there, slice_urn, patience)
    return min(found.expires, _described(there, slice_urn, patience).expires)


def renew(there: Connection, slice_urn: str, until: datetime) -> datetime:
    """Ask for more time; what lasts as long already is left alone, never shortened.

    Returns:
        What was granted, read back.

    Raises:
        Refused: Nothing was gained.
    """
    patience = Patience.of(there.config, min(300.0, there.config.patience))
    before = granted(there, slice_urn)
    if until <= before:
        return before
    reasons = []
    if _slice(there, slice_urn, patience).expires < until:
        try:
            patience.insist(lambda: there.authority.renew(slice_urn, until))
        except Busy:
            raise
        except Answered as error:
            reasons.append(error.message)
    target = min(until, _slice(there, slice_urn, patience).expires)
    credentials = patience.insist(lambda: there.authority.slice_credentials(slice_urn))
    try:
        patience.insist(lambda: there.aggregate.renew(slice_urn, credentials, target))
    except Busy:
        raise
    except Answered as error:
        reasons.append(error.message)
    after = granted(there, slice_urn)
    if after <= before < until and reasons:
        raise Refused(
            f"the lease stays as it was, until {times.write(before)}: {reasons[-1]}",
            "ask for less time: gpubed renew CLUSTER --for 12h",
        )
    for reason in reasons:
        progress.emit("note", message=f"the lease was renewed by less than wanted: {reason}")
    return after


def _slice(there: Connection, urn: str, patience: Patience) -> Slice:
    found = patience.insist(lambda: there.authority.find(urn))
    if found is None or found.expired:
        raise NotThere(f"slice {urn} has expired: its nodes are gone")
    return found


def _described(there: Connection, urn: str, patience: Patience) -> Description:
    credentials = patience.insist(lambda: there.authority.slice_credentials(urn))
    found = patience.insist(lambda: there.aggregate.describe(urn, credentials))
    if found is None:
        raise NotThere(f"slice {urn} has no nodes any more")
    return found
