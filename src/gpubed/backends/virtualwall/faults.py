"""Faults of a testbed, one class per kind."""

from __future__ import annotations

import re
from typing import Any

from gpubed.core.errors import GpubedError, Refused
from gpubed.core.reading import Unreadable

# Codes of AM API v3, and Emulab's own above 17.
_V3 = (
    "bad arguments|error|forbidden|bad version|server error|too big|refused|timed out|"
    "database error|RPC error|unavailable|not found|unsupported|busy|expired|in progress|"
    "already exists"
)
_NAMES = dict(enumerate(_V3.split("|"), 1)) | {
    19: "out of range",
    24: "no VLAN available",
    25: "not enough bandwidth",
    26: "not enough nodes",
    27: "not enough memory",
    28: "impossible topology",
    503: "server unavailable",
}
FORBIDDEN = 3
BUSY = {14, 503}
_NOT_FOUND = 12
_NO_RESOURCES = {6, 24, 26, 27, 28}
_TOO_FAST = 25
# The mapper uses other codes, too, if machines lack interfaces of the requested rate.
_TOO_SLOW = re.compile("not enough bandwidth|fast enough interfaces", re.IGNORECASE)
_LOWER_RATE = (
    "lower networks.experiment.rate in cluster.yml to what the machines' interfaces carry, or name "
    "faster ones in backend.hardware"
)
_REMAINS = re.compile("already (a registered slice|exists here)", re.IGNORECASE)
_WARNING = re.compile(r"(\*\*\* )?warning", re.IGNORECASE)
_LONGEST = 1500


OF_OTHERS = "set backend.login in cluster.yml to the login that made it, or take another name"
_LEASE = "correct lease.duration in cluster.yml"
_PROJECT = "correct backend.project in cluster.yml; gpubed doctor CLUSTER"
# Hints for an authority's refusals, by words in their text; the first match counts.
_HINTS = {
    # Names are unique across projects, and slices cannot be removed.
    "already": "gpubed down CLUSTER, then up, makes a slice of another name",
    "expired": "gpubed doctor CLUSTER compares the clocks, and looks at the login",
    "expiration": _LEASE,
    "short life": _LEASE,
    "project": _PROJECT,
    "authority mismatch": _PROJECT,
}


class Unanswered(GpubedError):
    """There was no usable answer; the call may have been carried out nevertheless."""

    def __init__(
        self, message: str, hint: str = "see whether network or testbed is down, then try again"
    ) -> None:
        super().__init__(message, hint)


class Busy(Unanswered, Refused):
    """The slice or the server is busy; the call was not carried out."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint or "try again in a few minutes")


class Malformed(Unreadable):
    """The testbed's answer violates its protocol."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint or "try again; if it stays so, correct the URLs in backend")


class Answered(Refused):
    """The testbed refused, with the aggregate's `code` and full text (`said`)."""

    def __init__(
        self, message: str, hint: str | None = None, code: int | None = None, said: str = ""
    ) -> None:
        super().__init__(message, hint)
        self.code, self.said = code, said or message


class NotThere(Answered):
    """The authority or aggregate has no such slice."""


class NoResources(Answered):
    """The testbed lacks the requested resources, now or always."""


def answered(
    what: str, code: int, output: str, log_url: str = "", *, is_authority: bool = False
) -> Answered | Busy:
    """Return the error for a code other than 0 of an authority or aggregate."""
    said = clean(output)
    message = f"{what}: {_NAMES.get(code, f'code {code}')}" + (f": {said}" if said else "")
    if code in BUSY:
        return Busy(message)
    kind, hint = NotThere if code == _NOT_FOUND else Answered, ""
    if code == _TOO_FAST or (code in _NO_RESOURCES and _TOO_SLOW.search(output)):
        hint = _LOWER_RATE  # fewer nodes would not help
    elif code in _NO_RESOURCES:
        kind, hint = NoResources, "gpubed resources CLUSTER lists what is free"
    if is_about_remains(output):
        hint = "if its lease has just ended, wait some minutes; else gpubed down CLUSTER, then up"
    if is_authority and not hint:
        fits = (hint for word, hint in _HINTS.items() if word in output.lower())
        hint = next(fits, OF_OTHERS if code == FORBIDDEN else "")
    log = f"the testbed's log: {clean(log_url)}" if log_url else ""
    return kind(message, "; ".join(filter(None, (hint, log))) or None, code, output)


def is_about_remains(said: str) -> bool:
    """Return whether remains of an ended slice may be the reason of a refusal."""
    return _REMAINS.search(said) is not None


def clean(text: Any) -> str:
    """Return a testbed's text fit for a terminal, on few lines and of limited length."""
    lines = [line.strip() for line in str(text or "").splitlines() if line.strip()]
    if sum(map(len, lines)) > _LONGEST:  # Emulab's mapper prints many warnings before its reasons
        reasons = [line for line in lines if not _WARNING.match(line)]
        lines = [line for line in reasons if line.startswith("***")] or reasons or lines
    printable = "\n".join("".join(c for c in line if c.isprintable()) for line in lines)
    return printable if len(printable) <= _LONGEST else printable[:_LONGEST] + "…"
