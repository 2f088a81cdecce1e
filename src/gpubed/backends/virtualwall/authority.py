"""Slice and member authority: the user's rights, and the slice that nodes belong to.

Common Federation API v2. Replies are ``{code: int, value, output}``; credentials are signed, so
they are passed on byte for byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpubed.backends.virtualwall import documents
from gpubed.backends.virtualwall.documents import Urn
from gpubed.backends.virtualwall.faults import Answered, Malformed, NotThere
from gpubed.backends.virtualwall.transport import Endpoint

Credential = dict[str, str]
_FIELDS = ("SLICE_URN", "SLICE_EXPIRATION", "SLICE_EXPIRED", "SLICE_DESCRIPTION")
_OF_CREDENTIALS = ("geni_type", "geni_version", "geni_value")


@dataclass(frozen=True)
class Slice:
    """A slice as its authority knows it.

    Attributes:
        is_closed: Whether it is another user's: Emulab tells only its members more than its name.
    """

    urn: str
    expires: datetime
    description: str = ""
    is_closed: bool = False

    @property
    def name(self) -> str:
        """The slice's name without its authority's."""
        return documents.urn(self.urn, "slice").name


class Authority:
    """The slice authority (`slices`) and member authority (`members`) of the user's account."""

    def __init__(self, slices: Endpoint, members: Endpoint, user: Urn) -> None:
        self._slices, self._members, self._user = slices, members, user
        self._own: list[Credential] | None = None

    def credentials(self) -> list[Credential]:
        """Return our own credentials, from the member authority; asked for once."""
        if self._own is None:
            value = self._members.ask("get_credentials", str(self._user), [], {})
            self._own = _credentials(value)
        return self._own

    def find(self, urn: str) -> Slice | None:
        """Return a slice; None when there is none."""
        return self._lookup({"SLICE_URN": urn}).get(urn)

    def of_project(self, project: Urn) -> list[Slice]:
        """Return the slices of a project that have not expired."""
        return [*self._lookup({"SLICE_PROJECT_URN": str(project), "SLICE_EXPIRED": False}).values()]

    def has_project(self, project: Urn) -> bool:
        """Return whether the user has such a project; True if the authority does not tell.

        The user's projects are listed, since Emulab does not look single ones up. Names are
        compared, since authorities change their domains.
        """
        whose, own = str(self._user), self.credentials()
        try:
            value = self._slices.ask("lookup_for_member", "PROJECT", whose, own, {})
        except Answered:
            return True
        found = [_mapping(item, "lookup_for_member") for item in value or ()]
        return project.name in {str(p.get("PROJECT_URN")).rpartition("+")[2] for p in found}

    def create(self, name: str, project: Urn, until: datetime, description: str) -> str:
        """Make a slice, and return its URN. Before a repetition, look for the slice."""
        fields = {
            "SLICE_NAME": name,
            "SLICE_PROJECT_URN": str(project),
            "SLICE_EXPIRATION": documents.written(until),
            "SLICE_DESCRIPTION": description,
        }
        own, options = self.credentials(), {"fields": fields}
        value = self._slices.ask("create", "SLICE", own, options, repeats=False)
        return str(documents.urn(str(_mapping(value, "create").get("SLICE_URN")), "slice"))

    def slice_credentials(self, urn: str) -> list[Credential]:
        """Return the credentials for a slice; they hold its expiry, so ask after renewing."""
        value = self._slices.ask("get_credentials", urn, self.credentials(), {})
        return _credentials(value)

    def renew(self, urn: str, until: datetime) -> None:
        """Move the end of a slice; the same end twice is no error."""
        fields = {"fields": {"SLICE_EXPIRATION": documents.written(until)}}
        self._slices.ask("update", "SLICE", urn, self.slice_credentials(urn), fields)

    def _lookup(self, match: dict[str, Any]) -> dict[str, Slice]:
        """Return the matching slices that have not expired, by URN."""
        options = {"match": match, "filter": list(_FIELDS)}
        try:
            value = self._slices.ask("lookup", "SLICE", self.credentials(), options)
        except NotThere:
            return {}
        found = {urn: _mapping(v, "lookup") for urn, v in _mapping(value or {}, "lookup").items()}
        return {u: _slice(u, f) for u, f in found.items() if not f.get("SLICE_EXPIRED", False)}


def _mapping(value: Any, method: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Malformed(f"the authority's answer to {method} is no structure")
    return value


def _credentials(value: Any) -> list[Credential]:
    items = [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
    whole = [item for item in items if item.keys() >= set(_OF_CREDENTIALS)]
    if not whole:
        raise Malformed("the authority answered without credentials")
    return [{key: str(item[key]) for key in _OF_CREDENTIALS} for item in whole]


def _slice(urn: str, fields: dict[str, Any]) -> Slice:
    if "SLICE_EXPIRATION" not in fields:
        return Slice(urn, datetime.max.replace(tzinfo=UTC), is_closed=True)
    expires = documents.time(fields["SLICE_EXPIRATION"])
    return Slice(urn, expires, str(fields.get("SLICE_DESCRIPTION") or ""))
