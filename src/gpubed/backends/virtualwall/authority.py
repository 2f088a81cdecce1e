"""Slice and member authority: who may do what, and the slice that nodes belong to.

Common Federation API v2. Replies are ``{code: int, value, output}``; credentials are
handed on byte for byte, since they are signed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from gpubed.backends.virtualwall import faults, times
from gpubed.backends.virtualwall import urn as urns
from gpubed.backends.virtualwall.faults import Answered, Busy, Malformed, NotThere
from gpubed.backends.virtualwall.transport import Endpoint
from gpubed.backends.virtualwall.urn import Urn

Credential = dict[str, str]
_FIELDS = ("SLICE_URN", "SLICE_EXPIRATION", "SLICE_EXPIRED", "SLICE_DESCRIPTION")
OF_OTHERS = (
    "if another login of yours made it, set backend.login in cluster.yml to that; else another "
    "user has the name now: gpubed down CLUSTER, then gpubed up CLUSTER, takes another name"
)
_NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Slice:
    """A slice as its authority knows it.

    Attributes:
        expired: Whether its authority says that it has ended.
        is_over: Whether it has, by that word or by the authority's clock; ours may be wrong.
        is_closed: Whether it is others': Emulab tells its members alone more than its name.
    """

    urn: str
    expires: datetime
    expired: bool
    is_over: bool
    description: str
    is_closed: bool = False


class Authority:
    """The authority of our account.

    Args:
        slices: Slice authority (SA).
        members: Member authority (MA).
        user: Our URN.
    """

    def __init__(self, slices: Endpoint, members: Endpoint, user: Urn) -> None:
        self._slices, self._members, self._user = slices, members, user
        self._own: list[Credential] | None = None

    @property
    def now(self) -> datetime:
        """The time by the authority's clock; ours may be wrong."""
        return datetime.now(UTC) + timedelta(seconds=self._slices.clock_ahead_s or 0.0)

    def version(self) -> dict[str, Any]:
        """Return what the slice authority says of itself."""
        return _mapping(self._ask(self._slices, "get_version"), "get_version")

    def credentials(self) -> list[Credential]:
        """Return our own credentials, from the member authority; asked for once."""
        if self._own is None:
            value = self._ask(self._members, "get_credentials", str(self._user), [], {})
            self._own = _credentials(value)
        return self._own

    def find(self, urn: str) -> Slice | None:
        """Return a slice; None when there is none."""
        return self._lookup({"SLICE_URN": urn}).get(urn)

    def of_project(self, project: Urn) -> list[Slice]:
        """Return the slices of a project that have not expired."""
        found = self._lookup({"SLICE_PROJECT_URN": str(project), "SLICE_EXPIRED": False})
        return [slice_ for slice_ in found.values() if not slice_.expired]

    def has_project(self, project: Urn) -> bool | None:
        """Say whether a project exists that we may use; None where the authority does not tell.

        Our own projects are listed: Emulab does not look single ones up. Names are compared,
        since authorities change their domains.
        """
        whose, own = str(self._user), self.credentials()
        try:
            value = self._ask(self._slices, "lookup_for_member", "PROJECT", whose, own, {})
        except Busy:
            raise
        except Answered:
            return None
        found = [_mapping(item, "lookup_for_member") for item in value or ()]
        return project.name in {str(p.get("PROJECT_URN")).rpartition("+")[2] for p in found}

    def create(self, name: str, project: Urn, until: datetime, description: str) -> str:
        """Make a slice, and return its URN. Not to be repeated unasked: look first."""
        fields = {
            "SLICE_NAME": name,
            "SLICE_PROJECT_URN": str(project),
            "SLICE_EXPIRATION": times.write(until),
            "SLICE_DESCRIPTION": description,
        }
        value = self._ask(self._slices, "create", "SLICE", self.credentials(), {"fields": fields})
        return str(urns.parse(str(_mapping(value, "create").get("SLICE_URN")), "slice"))

    def slice_credentials(self, urn: str) -> list[Credential]:
        """Return the credentials for a slice; they hold its expiry, so ask after renewing."""
        value = self._ask(self._slices, "get_credentials", urn, self.credentials(), {})
        return _credentials(value)

    def renew(self, urn: str, until: datetime) -> None:
        """Move the end of a slice; the same end twice is no error."""
        fields = {"fields": {"SLICE_EXPIRATION": times.write(until)}}
        self._ask(self._slices, "update", "SLICE", urn, self.slice_credentials(urn), fields)

    def _lookup(self, match: dict[str, Any]) -> dict[str, Slice]:
        options = {"match": match, "filter": list(_FIELDS)}
        try:
            value = self._ask(self._slices, "lookup", "SLICE", self.credentials(), options)
        except NotThere:
            return {}
        found = _mapping(value or {}, "lookup")
        return {
            urn: _slice(urn, _mapping(fields, "lookup"), self.now) for urn, fields in found.items()
        }

    def _ask(self, endpoint: Endpoint, method: str, *args: Any) -> Any:
        what = f"{endpoint.what} ({method})"
        reply = _mapping(endpoint.call(method, *args), method)
        code = reply.get("code")
        # Some authorities wrap the number as aggregates do.
        code = code.get("geni_code") if isinstance(code, dict) else code
        if not isinstance(code, int):
            raise Malformed(f"{what} answered without a code")
        if code:
            raise _explained(faults.answered(what, code, str(reply.get("output") or "")))
        return reply.get("value")


def _explained(error: Answered) -> Answered:
    said = error.said.lower()
    if error.hint is not None:
        return error
    if "already" in said:
        # Names are used once in all projects, and nobody can remove a slice.
        error.hint = "gpubed down CLUSTER, then up, makes a slice of another name"
    elif "expired" in said:
        error.hint = "gpubed doctor CLUSTER compares the clocks, and looks at the login"
    elif "expiration" in said or "short life" in said:
        error.hint = "correct lease.duration in cluster.yml"
    elif "project" in said or "authority mismatch" in said:
        error.hint = "correct backend.project in cluster.yml; gpubed doctor CLUSTER"
    elif error.code == faults.FORBIDDEN:
        error.hint = OF_OTHERS
    return error


def _mapping(value: Any, method: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Malformed(f"the authority's answer to {method} is no structure")
    return value


def _credentials(value: Any) -> list[Credential]:
    found = [
        {key: str(item[key]) for key in ("geni_type", "geni_version", "geni_value")}
        for item in (value if isinstance(value, list) else [])
        if isinstance(item, dict)
        and isinstance(item.get("geni_value"), str)
        and {"geni_type", "geni_version"} <= item.keys()
    ]
    if not found:
        raise Malformed("the authority answered without credentials")
    return found


def _slice(urn: str, fields: dict[str, Any], now: datetime) -> Slice:
    if "SLICE_EXPIRATION" not in fields:
        return Slice(urn, _NEVER, expired=False, is_over=False, description="", is_closed=True)
    expires = times.parse(fields["SLICE_EXPIRATION"])
    expired = bool(fields.get("SLICE_EXPIRED", False))
    return Slice(
        urn=urn,
        expires=expires,
        expired=expired,
        is_over=expired or expires <= now,
        description=str(fields.get("SLICE_DESCRIPTION") or ""),
    )
