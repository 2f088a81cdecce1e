"""Puts right what a state of a former version says wrongly.

Volumes were not marked as retained, so that what deletes them took the data along.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Resource = dict[str, Any]


def mended(resources: Sequence[Resource]) -> list[Resource]:
    """Return the recorded resources as this version would have recorded them."""
    return [
        {**resource, "retainOnDelete": True} if resource["type"].endswith(":Volume") else resource
        for resource in resources
    ]
