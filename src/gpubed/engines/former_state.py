"""What a state of a former version says that this version would act upon wrongly.

Volumes were not marked as retained, so that what deletes them took the data along. And a
forced replacement adopted what it replaced: the state has the same thing twice, once as the
resource and once as what is still to be deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Resource = dict[str, Any]


def mended(resources: Sequence[Resource]) -> list[Resource]:
    """Return the recorded resources as this version would have recorded them."""
    alive = {_identity(resource) for resource in resources if not resource.get("delete")}
    return [
        {**resource, "retainOnDelete": True} if resource["type"].endswith(":Volume") else resource
        for resource in resources
        if not (resource.get("delete") and resource.get("id") and _identity(resource) in alive)
    ]


def _identity(resource: Resource) -> tuple[str, str]:
    return resource["urn"], resource.get("id", "")
