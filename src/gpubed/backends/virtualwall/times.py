"""Points in time as aggregates and authorities write them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pydantic import TypeAdapter

from gpubed.backends.virtualwall.faults import Malformed
from gpubed.core.units import Moment

_MOMENT = TypeAdapter(Moment)


def parse(value: Any) -> datetime:
    """Read RFC 3339 with `Z`, an offset or (meaning UTC) neither; XML-RPC dates too.

    Raises:
        Malformed: It is none of these.
    """
    try:
        found = datetime.fromisoformat(str(value).strip())
        aware = found if found.tzinfo else found.replace(tzinfo=UTC)
        return _MOMENT.validate_python(aware).astimezone(UTC)
    except ValueError:
        raise Malformed(f"{str(value)[:80]!r} is not a point in time") from None


def write(time: datetime) -> str:
    """Write a time so that every aggregate reads it: UTC, whole seconds, `Z`."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
