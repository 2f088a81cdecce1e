"""What a flavor says about GPUs.

Nova has no word for GPUs; operators name them in a flavor's extra specs, as PCI
devices by alias or as resources of placement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_ALIAS = "pci_passthrough:alias"
_RESOURCE = "resources:"


@dataclass(frozen=True)
class Gpus:
    """GPUs of a flavor: how many, and what they are called."""

    count: int
    model: str


def gpus(extra_specs: Mapping[str, str]) -> Gpus | None:
    """Return the GPUs that extra specs name; None when they name none.

    ``pci_passthrough:alias`` is ``NAME:COUNT[,…]``; whatever is passed through is
    counted, since the alias' name is the operator's. Of ``resources:CLASS`` those with
    GPU in their name count, such as VGPU, PGPU or CUSTOM_GPU_A100.
    """
    aliases = [a.split(":") for a in extra_specs.get(_ALIAS, "").split(",") if ":" in a]
    found = [(name.strip(), int(count)) for name, count in aliases if count.strip().isdigit()]
    found += [
        (key.removeprefix(_RESOURCE), int(value))
        for key, value in extra_specs.items()
        if key.startswith(_RESOURCE) and "GPU" in key and value.isdigit()
    ]
    if not found:
        return None
    return Gpus(sum(count for _, count in found), ", ".join(name for name, _ in found))
