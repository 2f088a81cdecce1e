"""The connection to one testbed for one user: its authorities and its aggregate manager.

Slice and member authority speak the Common Federation API v2. Their credentials are signed, so they
are passed on byte for byte.

The aggregate manager speaks GENI AM API v3. Emulab and GCF differ in empty values (a list, 0, or an
empty string), in codes, and in refusals that are XML-RPC faults; both are supported.
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
    """A slice at its authority."""

    urn: str
    expires: datetime
    description: str = ""
    # Whether it belongs to other users: Emulab tells them only its name.
    is_closed: bool = False

    @property
    def name(self) -> str:
        """The slice's name without its authority's."""
        return documents.urn(self.urn, "slice").name


@dataclass(frozen=True)
class Sliver:
    """A part of a slice: a node, or a part of a link."""

    urn: str
    allocation: str  # geni_allocated, geni_provisioned or geni_unallocated
    operational: str  # geni_ready, geni_failed and so on; may be empty
    expires: datetime
    error: str = ""  # the aggregate's message about a failure
    client_id: str = ""  # the node's name in the request; empty if unknown

    @property
    def is_final(self) -> bool:
        """Whether it is provisioned and in a final state (`FINAL`)."""
        return self.allocation != _ALLOCATED and self.operational in FINAL


@dataclass(frozen=True)
class Description:
    """A slice at an aggregate."""

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
        """Whether nodes can be started, and none is starting."""
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
    # Credentials by the URN of their slice; by "" those of the user.
    signed: dict[str, list[dict[str, str]]] = field(default_factory=dict)

    @property
    def project(self) -> Urn:
        """The project that slices belong to."""
        return Urn(self.login.user.authority, "project", self.config.project)

    def slice_urn(self, name: str) -> str:
        """Return the usual URN of a slice of the project; authorities may use another form."""
        return str(Urn(f"{self.login.user.authority}:{self.config.project}", "slice", name))

    def patience(self, total: float | None = None) -> Patience:
        """Return the deadline of a task: `total` seconds, or those of the configuration."""
        return Patience(self.config.poll, total or self.config.patience)

    def credentials(self, urn: str = "") -> list[dict[str, str]]:
        """Return the credentials for a slice; those of the user by default."""
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
        """Return whether the user is in the project; True if the authority lists none.

        Emulab cannot look up a single project. Authorities change domains, so names are compared.
        """
        whose, own = str(self.login.user), self.credentials()
        try:
            value = self.slices.ask("lookup_for_member", "PROJECT", whose, own, {})
        except Answered:
            return True
        found = [str(_mapping(project, "project").get("PROJECT_URN")) for project in value or ()]
        return self.config.project in {urn.rpartition("+")[2] for urn in found}

    def create(self, name: str, until: datetime, description: str) -> str:
        """Make a slice, and return its URN. Not idempotent."""
        fields = {
            "SLICE_NAME": name,
            "SLICE_PROJECT_URN": str(self.project),
            "SLICE_EXPIRATION": documents.timestamp(until),
            "SLICE_DESCRIPTION": description,
        }
        own, options = self.credentials(), {"fields": fields}
        made = _mapping(self.slices.ask("create", "SLICE", own, options, repeats=False), "slice")
        return str(documents.urn(str(made.get("SLICE_URN")), "slice"))

    def renew_slice(self, urn: str, until: datetime) -> None:
        """Move the end of a slice at its authority; the same end twice is no error."""
        fields = {"fields": {"SLICE_EXPIRATION": documents.timestamp(until)}}
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
        """Return a slice at the aggregate; None if it has no slivers."""
        arguments = ([urn], self.credentials(urn), dict(_RSPEC))
        try:
            found = _described(self.aggregate.ask("Describe", *arguments))
        except NotThere:
            return None
        return found if found.slivers else None

    def allocate(self, urn: str, request: str, until: datetime) -> Description:
        """Reserve the nodes of a request for ten minutes. Not idempotent."""
        own, options = self.credentials(urn), {"geni_end_time": documents.timestamp(until)}
        ask = partial(self.aggregate.ask, timeout=_LONG_S, repeats=False)
        return _described(ask("Allocate", urn, own, request, options))

    def update(self, urn: str, request: str) -> None:
        """Change the nodes of a slice; those in the new request stay. Idempotent.

        Only Emulab has this call; other aggregates refuse it.
        """
        own = self.credentials(urn)
        self.aggregate.ask("Update", urn, [urn], own, request, {}, timeout=_LONG_S)

    def provision(
        self, urn: str, keys: Sequence[str], until: datetime, *, best_effort: bool
    ) -> Description:
        """Load the images of reserved nodes, which then accept the user's keys. Not idempotent."""
        options = {
            **_RSPEC,
            **self._users(keys),
            "geni_end_time": documents.timestamp(until),
            "geni_best_effort": best_effort,
        }
        ask = partial(self.aggregate.ask, timeout=_LONG_S, repeats=False)
        return _described(ask("Provision", [urn], self.credentials(urn), options))

    def act(self, urn: str, sliver: str, action: str, keys: Sequence[str] = ()) -> None:
        """Start or restart a slice's nodes, or replace their `keys` (geni_update_users).

        Returns before that is done. `describe` tells the state; the answers of aggregates differ.
        """
        own, options = self.credentials(urn), self._users(keys) if keys else {}
        self.aggregate.ask("PerformOperationalAction", [sliver], own, action, options)

    def _users(self, keys: Sequence[str]) -> dict[str, Any]:
        return {"geni_users": [{"urn": str(self.login.user), "keys": list(keys)}]}

    def renew(self, urn: str, until: datetime) -> None:
        """Extend the slivers until a time, or as long as the aggregate allows."""
        end, options = documents.timestamp(until), {"geni_extend_alap": True}
        self.aggregate.ask("Renew", [urn], self.credentials(urn), end, options)

    def delete(self, urn: str) -> None:
        """Release all slivers; returns before that is done."""
        self.aggregate.ask("Delete", [urn], self.credentials(urn), {}, timeout=_LONG_S)


def connect(config: Config) -> Connection:
    """Read the login, ask the aggregate for its version 3, and connect to the authorities."""
    login, context = logins.load(config), logins.context(config)

    def endpoint(url: str, what: str) -> Endpoint:
        return Endpoint(url, context, what, config.poll, min(_QUICK_S, config.patience))

    given = endpoint(config.aggregate.url, "the aggregate")
    manager, url, grows = version(given)
    aggregate = endpoint(url, given.what)
    aggregate.clock_ahead_s = given.clock_ahead_s
    slices = endpoint(config.authority.slices, "the slice authority")
    members = endpoint(config.authority.members, "the member authority")
    return Connection(config, login, slices, members, aggregate, manager, grows)


def version(aggregate: Endpoint) -> tuple[str, str, bool]:
    """Return the aggregate's URN, its URL of version 3, and whether running slices can grow.

    They cannot without `geni_allocate` in the reply of GetVersion (AM API v3). Raises Malformed if
    there is no version 3.
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
