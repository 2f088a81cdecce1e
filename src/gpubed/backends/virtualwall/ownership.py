"""Whose a slice is, and how a cluster's own is found."""

from __future__ import annotations

from gpubed.backends.virtualwall import urn as urns
from gpubed.backends.virtualwall.authority import OF_OTHERS, Slice
from gpubed.backends.virtualwall.connection import Connection
from gpubed.backends.virtualwall.journal import Journal
from gpubed.backends.virtualwall.slice_inputs import SliceInputs, owner
from gpubed.core.errors import Refused


def find(there: Connection, known: str, wanted: SliceInputs) -> Slice | None:
    """Return the cluster's slice: by its URN as far as that is known, else among the project's.

    Authorities name slices as they like, and some keep no description. A slice of the same name
    may be somebody else's: see `is_anothers` and `require_ours`.
    """
    if found := there.authority.find(known):
        return found
    others = there.authority.of_project(there.project)
    labelled = [s for s in others if owner(s.description) == (wanted.cluster, wanted.uuid)]
    called_so = [s for s in others if urns.parse(s.urn, "slice").name == wanted.name]
    return next(iter([*labelled, *called_so]), None)


def known_urn(there: Connection, journal: Journal | None, wanted: SliceInputs) -> str:
    """Return what the cluster's slice is called, as far as that is known beforehand."""
    if journal and journal.uuid == wanted.uuid:
        return journal.slice_urn
    return there.slice_urn(wanted.name)


def is_taken(there: Connection, found: Slice, journal: Journal | None) -> bool:
    """Say whether another user has a slice's name, our slice having ended."""
    ended = journal and journal.granted_until
    return found.is_closed and bool(ended and ended <= there.authority.now)


def is_ours(found: Slice, uuid: str, known: str) -> bool:
    """Say whether a slice is the cluster's: by its labels, else since we had nodes in it.

    Args:
        known: The URN of the slice that the state, or a run before this one, had nodes in.
    """
    owned_by = owner(found.description)
    return owned_by[1] == uuid if owned_by else found.urn == known


def is_anothers(found: Slice, uuid: str) -> bool:
    """Say whether a slice carries the id of another cluster."""
    owned_by = owner(found.description)
    return owned_by is not None and owned_by[1] != uuid


def require_ours(found: Slice, wanted: SliceInputs) -> None:
    """Check that nothing of anybody else's would be used, or given back.

    Raises:
        Refused: The slice is another cluster's.
    """
    if found.is_closed:
        raise Refused(
            f"slice {wanted.name} belongs to somebody else: the authority tells only its name",
            OF_OTHERS,
        )
    if is_anothers(found, wanted.uuid):
        owned_by = owner(found.description) or ("", "")
        raise Refused(
            f"slice {wanted.name} belongs to another cluster, {owned_by[0]} ({owned_by[1]})",
            f"gpubed audit {wanted.cluster} tells more; another name makes another slice",
        )
