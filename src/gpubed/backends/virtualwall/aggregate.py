"""The aggregate manager: GENI AM API v3, as Emulab and GCF speak it.

The two differ in an empty `value` (a list, 0, or an empty string), in codes, and in which refusals
are faults; only what both provide is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpubed.backends.virtualwall import documents, faults
from gpubed.backends.virtualwall.authority import Credential
from gpubed.backends.virtualwall.faults import Malformed, NotThere
from gpubed.backends.virtualwall.transport import Endpoint

_RSPEC = {"geni_rspec_version": {"type": "GENI", "version": "3"}}
_API = 3
_ALLOCATED = "geni_allocated"
FINAL = frozenset({"geni_ready", "geni_failed"})
_STARTABLE = {"geni_notready", "geni_pending_allocation", ""}
_QUICK_S, _LONG_S = 60.0, 600.0  # the mapper works while Allocate waits


@dataclass(frozen=True)
class Sliver:
    """A part of a slice: a node, or what a link is made of.

    Attributes:
        allocation: geni_allocated, geni_provisioned or geni_unallocated.
        operational: geni_ready, geni_failed and so on; may be empty.
        error: The aggregate's words when it failed.
        client_id: The node's name in the request; empty if the aggregate does not tell.
    """

    urn: str
    allocation: str
    operational: str
    expires: datetime
    error: str = ""
    client_id: str = ""

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


class Aggregate:
    """An aggregate manager; `endpoint` is at the URL for version 3."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    @property
    def clock_ahead_s(self) -> float:
        """Seconds that the aggregate's clock is ahead of ours; 0 if it does not tell."""
        return self._endpoint.clock_ahead_s

    def version(self) -> tuple[str, str]:
        """Return the aggregate's URN, and the URL of its version 3; Malformed if it has none."""
        value = self._endpoint.ask("GetVersion", {})
        if not isinstance(value, dict):
            raise Malformed("the aggregate does not tell its version")
        urls = value.get("geni_api_versions") or {}
        url = urls.get(str(_API), "") if isinstance(urls, dict) else ""
        if not url and value.get("geni_api") == _API:
            url = self._endpoint.url
        if not isinstance(url, str) or not url.startswith("https://"):
            raise Malformed("the aggregate offers no AM API version 3")
        return str(value.get("urn") or ""), url

    def advertisement(self, credentials: Sequence[Credential]) -> str:
        """Return the advertisement RSpec of all machines."""
        options = {**_RSPEC, "geni_available": False, "geni_compressed": True}
        value = self._endpoint.ask("ListResources", list(credentials), options, timeout=_LONG_S)
        text = value.decode("ascii", "replace") if isinstance(value, bytes) else value
        if not isinstance(text, str):
            raise Malformed("the advertisement is no text")
        # An aggregate may ignore the wish for compression.
        is_plain = text.lstrip().startswith("<")
        return text if is_plain else documents.inflate(text, "the advertisement")

    def describe(self, slice_urn: str, credentials: Sequence[Credential]) -> Description | None:
        """Return the slice's slivers and manifest; None if it has none here."""
        try:
            described = self._described("Describe", [slice_urn], list(credentials), dict(_RSPEC))
        except NotThere:
            return None
        return described if described.slivers else None

    def allocate(
        self, slice_urn: str, credentials: Sequence[Credential], request: str, until: datetime
    ) -> Description:
        """Reserve a request for ten minutes. Do not repeat blindly."""
        options = {"geni_end_time": documents.written(until)}
        return self._described("Allocate", slice_urn, list(credentials), request, options)

    def update(self, slice_urn: str, credentials: Sequence[Credential], request: str) -> None:
        """Request a slice's nodes anew, in place: those still named stay. May be repeated.

        Only Emulab has this call: other aggregates refuse it.
        """
        self._endpoint.ask(
            "Update", slice_urn, [slice_urn], list(credentials), request, {}, timeout=_LONG_S
        )

    def provision(
        self,
        slice_urn: str,
        credentials: Sequence[Credential],
        users: list[dict[str, Any]],
        until: datetime,
        best_effort: bool,
    ) -> Description:
        """Load what was reserved; `users` (`urn`, `keys`) may log in."""
        options = {
            **_RSPEC,
            "geni_users": users,
            "geni_end_time": documents.written(until),
            "geni_best_effort": best_effort,
        }
        return self._described("Provision", [slice_urn], list(credentials), options)

    def act(self, urn: str, credentials: Sequence[Credential], action: str) -> None:
        """Start or restart nodes; it goes on after the call has ended."""
        # The answers of aggregates differ too much: ask for the status instead.
        self._endpoint.ask("PerformOperationalAction", [urn], list(credentials), action, {})

    def renew(self, slice_urn: str, credentials: Sequence[Credential], until: datetime) -> None:
        """Ask for more time, or as much of it as can be had; `describe` tells the result."""
        end, options = documents.written(until), {"geni_extend_alap": True}
        self._endpoint.ask("Renew", [slice_urn], list(credentials), end, options)

    def delete(self, slice_urn: str, credentials: Sequence[Credential]) -> None:
        """Release everything; goes on after the call has ended."""
        self._endpoint.ask("Delete", [slice_urn], list(credentials), {}, timeout=_LONG_S)

    def _described(self, method: str, *args: Any) -> Description:
        quick = method == "Describe"
        value = self._endpoint.ask(
            method, *args, timeout=_QUICK_S if quick else _LONG_S, repeats=quick
        )
        if not isinstance(value, dict) or not isinstance(value.get("geni_slivers"), list):
            raise Malformed(f"the aggregate's answer to {method} lists no slivers")
        slivers = tuple(_sliver(item, method) for item in value["geni_slivers"])
        return Description(str(value.get("geni_rspec") or ""), slivers)


def _sliver(item: Any, method: str) -> Sliver:
    if not isinstance(item, dict) or not isinstance(item.get("geni_sliver_urn"), str):
        raise Malformed(f"the aggregate's answer to {method} lists a sliver without a name")
    return Sliver(
        urn=item["geni_sliver_urn"],
        allocation=str(item.get("geni_allocation_status") or ""),
        operational=str(item.get("geni_operational_status") or ""),
        expires=documents.time(item.get("geni_expires")),
        error=faults.clean(item.get("geni_error")),
        client_id=str(item.get("geni_client_id") or ""),
    )
