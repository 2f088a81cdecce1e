"""The driver branches that are available for an operating system, from role nvidia_driver."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from gpubed.core import reading
from gpubed.core.paths import assets
from gpubed.hardware.drivers import Offer

_VARIABLES = TypeAdapter(dict[str, Any])


@cache
def offers(image: str) -> Mapping[str, tuple[Offer, ...]]:
    """Return the branches of a system (`debian-12`) by package source, the preferred first."""
    release = image.replace("-", " ").capitalize()
    known = _variables(f"vars/{release.split()[0]}.yml")["__nvidia_driver_catalog"]
    managers = ("fabric_manager", "subnet_manager")
    return {
        source: tuple(
            Offer(row["branch"], *(row.get(manager, False) for manager in managers))
            for row in known[source]
            if row["release"] in (release, "")
        )
        for source in _variables("defaults/main.yml")["nvidia_driver_sources"]
    }


def _variables(file: str) -> dict[str, Any]:
    path = assets() / "roles" / "nvidia_driver" / file
    return reading.file(path).yaml(_VARIABLES)
