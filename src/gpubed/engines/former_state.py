"""Corrects the state of a former version.

Volumes were not marked as retained, so deleting them deleted their data.
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
