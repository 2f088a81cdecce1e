"""Names of the federation: `urn:publicid:IDN+<authority>+<type>+<name>`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpubed.core.errors import GpubedError

_URN = re.compile(r"urn:publicid:IDN\+([^\s+]+)\+([a-z]+)\+([^\s]+)")
_SLICE_NAME = 19  # GENI's limit; letters, digits and '-', first a letter


@dataclass(frozen=True)
class Urn:
    """A name; `authority` may have sub-authorities, `geni:gpo:gcf`."""

    authority: str
    type: str
    name: str

    def __str__(self) -> str:
        return f"urn:publicid:IDN+{self.authority}+{self.type}+{self.name}"


def parse(text: str, type_: str | None = None) -> Urn:
    """Read a URN.

    Raises:
        GpubedError: It is none, or of another type.
    """
    match = _URN.fullmatch(text)
    if match is None or type_ not in (None, match[2]):
        raise GpubedError(f"{text[:200]!r} is not the URN of a {type_ or 'thing'}")
    return Urn(*match.groups())


def slice_name(cluster: str, uuid: str) -> str:
    """Return the name of a cluster's slice: names are used once in all projects."""
    tail = f"-{uuid[:8]}"
    return cluster[: _SLICE_NAME - len(tail)].rstrip("-") + tail
