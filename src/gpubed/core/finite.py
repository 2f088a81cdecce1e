"""Data as JSON can hold it: a number that is none has no way to be written there."""

from __future__ import annotations

import math
from typing import Any


def plain(value: Any) -> Any:
    """Return data with null in place of NaN and infinity, which are no JSON (RFC 8259)."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
