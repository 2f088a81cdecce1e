"""GENI names: `urn:publicid:IDN+<authority>+<type>+<name>`."""

from typing import NamedTuple

_PREFIX = "urn:publicid:IDN+"


class Urn(NamedTuple):
    """The three parts of a name; an authority may have sub-authorities behind colons."""

    authority: str
    kind: str
    name: str

    def __str__(self):
        return f"{_PREFIX}{self.authority}+{self.kind}+{self.name}"


def make(authority, kind, name):
    """Returns a name as text."""
    return str(Urn(authority, kind, name))


def parse(text):
    """Takes a name apart; raises ValueError when it is none."""
    parts = text.removeprefix(_PREFIX).split("+") if isinstance(text, str) else []
    if len(parts) != 3 or not text.startswith(_PREFIX) or not all(parts):
        raise ValueError(f"not a GENI URN: {text!r}")
    return Urn(*parts)
