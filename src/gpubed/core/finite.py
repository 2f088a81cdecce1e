"""Replaces NaN and infinity by null, which JSON lacks."""

from __future__ import annotations

import math
from typing import Any


def plain(value: Any) -> Any:
    """Return data with None in place of NaN and infinity, which JSON lacks (RFC 8259)."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
