"""The connection to one testbed for one user: its authorities and its aggregate manager.

Slice and member authority speak the Common Federation API v2: they know the user's rights, and the
slice that nodes belong to. Credentials are signed, so they are passed on byte for byte.

The aggregate manager speaks GENI AM API v3, as Emulab and GCF do. The two differ in an empty
`value` (a list, 0, or an empty string), in codes, and in which refusals are faults; only what both
provide is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from gpubed.backends.virtualwall import documents, faults
from gpubed.backends.virtualwall import login as logins
from gpubed.backends.virtualwall.config import Config
from gpubed.backends.virtualwall.documents import Urn
from gpubed.backends.virtualwall.faults import Answered, Malformed, NotThere
from gpubed.backends.virtualwall.login import Login
from gpubed.backends.virtualwall.transport import Endpoint, Patience

_FIELDS = ("SLICE_URN", "SLICE_EXPIRATION", "SLICE_EXPIRED", "SLICE_DESCRIPTION")
_OF_CREDENTIALS = ("geni_type", "geni_version", "geni_value")
_RSPEC = {"geni_rspec_version": {"type": "GENI", "version": "3"}}
_API = 3
_ALLOCATED = "geni_allocated"
FINAL = frozenset({"geni_ready", "geni_failed"})
_STARTABLE = {"geni_notready", "geni_pending_allocation", ""}
_LONG_S = 600.0  # the mapper works while Allocate waits
_QUICK_S = 300.0  # for calls that wait for no node


@dataclass(frozen=True)
class Slice:
    """A slice as its authority knows it."""

    urn: str
    expires: datetime
    description: str = ""
    # Whether it is another user's: Emulab tells only its members more than its name.
    is_closed: bool = False

    @property
    def name(self) -> str:
        """The slice's name without its authority's."""
        return documents.urn(self.urn, "slice").name


@dataclass(frozen=True)
class Sliver:
    """A part of a slice: a node, or what a link is made of."""

    urn: str
    allocation: str  # geni_allocated, geni_provisioned or geni_unallocated
    operational: str  # geni_ready, geni_failed and so on; may be empty
    expires: datetime
    error: str = ""  # the aggregate's words when it failed
    client_id: str = ""  # the node's name in the request; empty if the aggregate does not tell

    @property
    def is_final(self) -> bool:
        """Whether it is provisioned and in a final state (`FINAL`)."""
        return self.allocation != _ALLOCATED and self.operational in FINAL


@dataclass(frozen=True)
class Description:
    """What an aggregate has of a slice."""

    manifest: str
    slivers: tuple[Sliver, ...]

    @property
    def expires(self) -> datetime:
        """When the first sliver expires."""
        return min(sliver.expires for sliver in self.slivers)

    @property
    def has_ticket(self) -> bool:
        """Whether a part is allocated, but not yet provisioned."""
        return any(sliver.allocation == _ALLOCATED for sliver in self.slivers)

    @property
    def is_final(self) -> bool:
        """Whether all parts are in a final state."""
        return all(sliver.is_final for sliver in self.slivers)

    @property
    def is_startable(self) -> bool:
        """Whether nodes wait to be started, and none is starting."""
        states = {sliver.operational for sliver in self.slivers}
        return bool(states & _STARTABLE) and "geni_configuring" not in states


@dataclass(frozen=True)
class Connection:
    """A user at a testbed: slice authority, member authority, and aggregate (version 3)."""

    config: Config
    login: Login
    slices: Endpoint
    members: Endpoint
    aggregate: Endpoint
    manager: str = ""  # the aggregate's own URN; may be empty
    grows: bool = False  # whether nodes can be added to a slice that runs
    # Credentials by what they are for: the user, or a slice.
    signed: dict[str, list[dict[str, str]]] = field(default_factory=dict)

    @property
    def project(self) -> Urn:
        """The project that slices belong to."""
        return Urn(self.login.user.authority, "project", self.config.project)

    def slice_urn(self, name: str) -> str:
        """Return the usual URN of a slice of the project; the authority may name it otherwise."""
        return str(Urn(f"{self.login.user.authority}:{self.config.project}", "slice", name))

    def patience(self, total: float | None = None) -> Patience:
        """Return the patience of a task: all that the configuration allows, or `total` seconds."""
        return Patience(self.config.poll, total or self.config.patience)

    def credentials(self, urn: str = "") -> list[dict[str, str]]:
        """Return the credentials for a slice; our own by default."""
        if urn not in self.signed:
            if urn:
                value = self.slices.ask("get_credentials", urn, self.credentials(), {})
            else:
                value = self.members.ask("get_credentials", str(self.login.user), [], {})
            items = value if isinstance(value, list) else []
            whole = [i for i in items if isinstance(i, dict) and i.keys() >= set(_OF_CREDENTIALS)]
            if not whole:
                raise Malformed("the authority answered without credentials")
            self.signed[urn] = [{key: str(item[key]) for key in _OF_CREDENTIALS} for item in whole]
        return self.signed[urn]

    def find(self, urn: str) -> Slice | None:
        """Return a slice; None when there is none."""
        return self._lookup({"SLICE_URN": urn}).get(urn)

    def of_project(self) -> list[Slice]:
        """Return the project's slices that have not expired."""
        match = {"SLICE_PROJECT_URN": str(self.project), "SLICE_EXPIRED": False}
        return [*self._lookup(match).values()]

    def has_project(self) -> bool:
        """Return whether the project is one of the user's; True if the authority does not tell.

        The user's projects are listed, since Emulab does not look single ones up. Names are
        compared, since authorities change their domains.
        """
        whose, own = str(self.login.user), self.credentials()
        try:
            value = self.slices.ask("lookup_for_member", "PROJECT", whose, own, {})
        except Answered:
            return True
        found = [str(_mapping(project, "project").get("PROJECT_URN")) for project in value or ()]
        return self.config.project in {urn.rpartition("+")[2] for urn in found}

    def create(self, name: str, until: datetime, description: str) -> str:
        """Make a slice, and return its URN. Before a repetition, look for the slice."""
        fields = {
            "SLICE_NAME": name,
            "SLICE_PROJECT_URN": str(self.project),
            "SLICE_EXPIRATION": documents.written(until),
            "SLICE_DESCRIPTION": description,
        }
        own, options = self.credentials(), {"fields": fields}
        made = _mapping(self.slices.ask("create", "SLICE", own, options, repeats=False), "slice")
        return str(documents.urn(str(made.get("SLICE_URN")), "slice"))

    def renew_slice(self, urn: str, until: datetime) -> None:
        """Move the end of a slice at its authority; the same end twice is no error."""
        fields = {"fields": {"SLICE_EXPIRATION": documents.written(until)}}
        # A credential holds the slice's end.
        self.slices.ask("update", "SLICE", urn, self.credentials(urn), fields)
        self.signed.pop(urn)

    def _lookup(self, match: dict[str, Any]) -> dict[str, Slice]:
        options = {"match": match, "filter": list(_FIELDS)}
        try:
            value = self.slices.ask("lookup", "SLICE", self.credentials(), options)
        except NotThere:
            return {}
        found = {}
        for urn, told in _mapping(value or {}, "list").items():
            fields = _mapping(told, "slice")
            end, labels = fields.get("SLICE_EXPIRATION"), str(fields.get("SLICE_DESCRIPTION") or "")
            expires = documents.time(end) if end else datetime.max.replace(tzinfo=UTC)
            if not fields.get("SLICE_EXPIRED", False):
                found[urn] = Slice(urn, expires, labels, is_closed=end is None)
        return found

    def advertisement(self) -> str:
        """Return the advertisement RSpec of all machines."""
        options = {**_RSPEC, "geni_available": False, "geni_compressed": True}
        value = self.aggregate.ask("ListResources", self.credentials(), options, timeout=_LONG_S)
        text = value.decode("ascii", "replace") if isinstance(value, bytes) else value
        if not isinstance(text, str):
            raise Malformed("the advertisement is no text")
        # An aggregate may ignore the wish for compression.
        is_plain = text.lstrip().startswith("<")
        return text if is_plain else documents.inflate(text, "the advertisement")

    def describe(self, urn: str) -> Description | None:
        """Return what the aggregate has of a slice; None if it has nothing."""
        arguments = ([urn], self.credentials(urn), dict(_RSPEC))
        try:
            found = _described(self.aggregate.ask("Describe", *arguments))
        except NotThere:
            return None
        return found if found.slivers else None

    def allocate(self, urn: str, request: str, until: datetime) -> Description:
        """Reserve a request for ten minutes. Do not repeat blindly."""
        own, options = self.credentials(urn), {"geni_end_time": documents.written(until)}
        ask = partial(self.aggregate.ask, timeout=_LONG_S, repeats=False)
        return _described(ask("Allocate", urn, own, request, options))

    def update(self, urn: str, request: str) -> None:
        """Request a slice's nodes anew, in place: those still named stay. May be repeated.

        Only Emulab has this call: other aggregates refuse it.
        """
        own = self.credentials(urn)
        self.aggregate.ask("Update", urn, [urn], own, request, {}, timeout=_LONG_S)

    def provision(
        self, urn: str, keys: Sequence[str], until: datetime, *, best_effort: bool
    ) -> Description:
        """Load what was reserved; the user may log in with these keys."""
        options = {
            **_RSPEC,
            **self._users(keys),
            "geni_end_time": documents.written(until),
            "geni_best_effort": best_effort,
        }
        ask = partial(self.aggregate.ask, timeout=_LONG_S, repeats=False)
        return _described(ask("Provision", [urn], self.credentials(urn), options))

    def act(self, urn: str, sliver: str, action: str, keys: Sequence[str] = ()) -> None:
        """Start or restart a slice's nodes, or replace their `keys` (geni_update_users).

        It goes on after the call has ended.
        """
        # The answers of aggregates differ too much: ask for the status instead.
        own, options = self.credentials(urn), self._users(keys) if keys else {}
        self.aggregate.ask("PerformOperationalAction", [sliver], own, action, options)

    def _users(self, keys: Sequence[str]) -> dict[str, Any]:
        return {"geni_users": [{"urn": str(self.login.user), "keys": list(keys)}]}

    def renew(self, urn: str, until: datetime) -> None:
        """Ask the aggregate for more time, or as much of it as can be had."""
        end, options = documents.written(until), {"geni_extend_alap": True}
        self.aggregate.ask("Renew", [urn], self.credentials(urn), end, options)

    def delete(self, urn: str) -> None:
        """Release everything; goes on after the call has ended."""
        self.aggregate.ask("Delete", [urn], self.credentials(urn), {}, timeout=_LONG_S)


def connect(config: Config) -> Connection:
    """Read the login, ask the aggregate for its version 3, and connect to the authorities."""
    login, context = logins.load(config), logins.context(config)

    def endpoint(url: str, what: str) -> Endpoint:
        return Endpoint(url, context, what, config.poll, min(_QUICK_S, config.patience))

    asked = endpoint(config.aggregate.url, "the aggregate")
    manager, asked.url, grows = version(asked)
    aggregate = endpoint(asked.url, asked.what)
    aggregate.clock_ahead_s = asked.clock_ahead_s
    slices = endpoint(config.authority.slices, "the slice authority")
    members = endpoint(config.authority.members, "the member authority")
    return Connection(config, login, slices, members, aggregate, manager, grows)


def version(aggregate: Endpoint) -> tuple[str, str, bool]:
    """Return the aggregate's URN, its URL of version 3, and whether slices that run can grow.

    `geni_allocate` tells the last (AM API v3, GetVersion): without it, a slice is allocated once.
    Raises Malformed if there is no version 3.
    """
    value = aggregate.ask("GetVersion", {})
    if not isinstance(value, dict):
        raise Malformed("the aggregate does not tell its version")
    urls = value.get("geni_api_versions") or {}
    url = urls.get(str(_API), "") if isinstance(urls, dict) else ""
    if not url and value.get("geni_api") == _API:
        url = aggregate.url
    if not isinstance(url, str) or not url.startswith("https://"):
        raise Malformed("the aggregate offers no AM API version 3")
    grows = value.get("geni_allocate") in ("geni_disjoint", "geni_many")
    return str(value.get("urn") or ""), url, grows


def _mapping(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Malformed(f"the testbed's answer has a {what} that is no structure")
    return value


def _described(value: Any) -> Description:
    if not isinstance(value, dict) or not isinstance(value.get("geni_slivers"), list):
        raise Malformed("the aggregate's answer lists no slivers")
    slivers = []
    for item in (_mapping(item, "sliver") for item in value["geni_slivers"]):
        names = ("sliver_urn", "allocation_status", "operational_status", "client_id")
        urn, allocation, operational, client_id = (str(item.get(f"geni_{n}") or "") for n in names)
        expires, error = documents.time(item.get("geni_expires")), item.get("geni_error")
        if not urn:
            raise Malformed("the aggregate's answer lists a sliver without a name")
        error = faults.clean(error)
        slivers.append(Sliver(urn, allocation, operational, expires, error, client_id))
    return Description(str(value.get("geni_rspec") or ""), tuple(slivers))
