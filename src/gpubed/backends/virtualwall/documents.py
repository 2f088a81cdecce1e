"""Reads testbeds' XML, names and times; XML within limits, and without fetching or expanding."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from lxml import etree
from pydantic import TypeAdapter

from gpubed.backends.virtualwall.faults import Malformed
from gpubed.core import reading
from gpubed.core.errors import GpubedError
from gpubed.core.units import Moment

LIMIT = 32 * 2**20  # bytes; the advertisement of a large site has a few million
_PARTS = 2_000_000  # tags and attributes; each takes many times its bytes once it is parsed
_MOMENT: TypeAdapter[datetime] = TypeAdapter(Moment)
_URN = re.compile(r"urn:publicid:IDN\+([^\s+]+)\+([a-z]+)\+([^\s]+)")
_SLICE_NAME = 19  # GENI's limit; letters, digits and '-', first a letter


def bounded(data: bytes | str, what: str) -> str:
    """Return XML as text; raise Malformed if it is not UTF-8, too large, or declares entities."""
    text = reading.reply(data, what, limit=LIMIT, error=Malformed).text()
    if text.count("<") + text.count("=") > _PARTS:
        raise Malformed(f"{what} cannot be read: it has more than {_PARTS} parts")
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise Malformed(f"{what} declares a document type or entities, which gpubed does not read")
    return text


def parse(text: str, what: str) -> Any:
    """Return a document's root element (lxml); raise Malformed as `bounded` does."""
    parser = etree.XMLParser(
        encoding="utf-8",  # whatever the declaration says: the text came as UTF-8
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        remove_comments=True,
        remove_pis=True,
    )
    try:
        return etree.fromstring(bounded(text, what).encode(), parser)
    except etree.XMLSyntaxError as error:
        raise Malformed(f"{what} is not XML: {str(error.msg)[:200]}") from None


def rspec(text: str, kind: str) -> Any:
    """Return the root element of an RSpec of a kind; raise Malformed if it is another document."""
    root = parse(text, f"the {kind}")
    if local(root) != "rspec" or root.get("type") != kind:
        raise Malformed(f"the testbed answered with something else than the {kind}")
    return root


def inflate(text: str, what: str) -> str:
    """Unpack what an aggregate compressed (base64 of zlib); raise Malformed if that fails."""
    # Servers break base64 into lines.
    packed = reading.reply("".join(text.split()), what, limit=LIMIT, error=Malformed)
    return packed.base64().inflated().text()


def children(element: Any, *names: str) -> list[Any]:
    """Return the elements at the end of a path of names, whatever their namespace."""
    found = [element]
    for name in names:
        found = [child for parent in found for child in parent if local(child) == name]
    return found


def local(element: Any) -> str:
    """Return an element's name without its namespace."""
    return str(etree.QName(element).localname) if isinstance(element.tag, str) else ""


@dataclass(frozen=True)
class Urn:
    """A name of the federation; `authority` may have sub-authorities, `geni:gpo:gcf`."""

    authority: str
    type: str
    name: str

    def __str__(self) -> str:
        return f"urn:publicid:IDN+{self.authority}+{self.type}+{self.name}"


def urn(text: str, type_: str) -> Urn:
    """Read a URN; raise GpubedError if it is malformed or of another type."""
    match = _URN.fullmatch(text)
    if match is None or type_ != match[2]:
        raise GpubedError(f"{text[:200]!r} is not the URN of a {type_}")
    return Urn(*match.groups())


def slice_name(cluster: str, uuid: str) -> str:
    """Return the name of a cluster's slice: names are used once in all projects."""
    tail = f"-{uuid[:8]}"
    return cluster[: _SLICE_NAME - len(tail)].rstrip("-") + tail


def time(value: Any) -> datetime:
    """Read RFC 3339 with `Z`, an offset or (meaning UTC) neither; XML-RPC dates too."""
    try:
        found = datetime.fromisoformat(str(value).strip())
        aware = found if found.tzinfo else found.replace(tzinfo=UTC)
        return _MOMENT.validate_python(aware).astimezone(UTC)
    except ValueError:
        raise Malformed(f"{str(value)[:80]!r} is not a point in time") from None


def written(time: datetime) -> str:
    """Write a time so that every aggregate reads it: UTC, whole seconds, `Z`."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
