"""What a flavor says about GPUs.

Nova has no word for GPUs; operators name them in a flavor's extra specs, as PCI
devices by alias or as resources of placement.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_ALIAS = "pci_passthrough:alias"
# Groups of resources have a suffix: `resources1:VGPU`, `resources_GPU:VGPU`.
_RESOURCE = re.compile(r"resources[\w-]{0,64}:(\w+)")
# Classes that every cloud has, and none of which is a GPU.
_STANDARD = re.compile(r"VCPU|PCPU|MEMORY_MB|MEM_ENCRYPTION_CONTEXT|DISK_GB|NET_\w+|SRIOV_\w+")
_MODELS = (
    r"k[48]0|m[46]0|p4|p40|p100|t4|v100s?|a2|a10g?|a16|a30|a40|a100|a800|l4|l20|l40s?|h20|h100|h200|h800|gh200|"
    r"b100|b200|b300|gb200|rtx\w*|gtx\w*|mi\d{2,3}x?"
)
# Letters and digits around a model would make it another word.
_GPU = re.compile(
    rf"gpu|nvidia|tesla|quadro|geforce|radeon|instinct|(?<![a-z0-9])(?:{_MODELS})(?![a-z0-9])",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Gpus:
    """GPUs of a flavor: how many, and what they are called."""

    count: int
    model: str


def gpus(extra_specs: Mapping[str, str]) -> Gpus | None:
    """Return the GPUs that extra specs name; None when they do not tell.

    ``pci_passthrough:alias`` is ``NAME:COUNT[,…]``, and ``resources:CLASS`` is placement's;
    names are the operator's, so that one that says nothing may be a GPU, or a network adapter.
    """
    found = [*_aliases(extra_specs), *_resources(extra_specs)]
    if not found or not all(_GPU.search(name) for name, _ in found):
        return None
    return Gpus(sum(count for _, count in found), ", ".join(name for name, _ in found))


def _aliases(extra_specs: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    for alias in extra_specs.get(_ALIAS, "").split(","):
        name, _, count = alias.partition(":")
        if count.strip().isdigit():
            yield name.strip(), int(count)


def _resources(extra_specs: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    for key, value in extra_specs.items():
        found = _RESOURCE.fullmatch(key)
        if found and not _STANDARD.fullmatch(found[1]) and value.isdigit() and int(value):
            yield found[1], int(value)
