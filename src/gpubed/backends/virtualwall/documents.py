"""XML that others wrote: read with limits, and without anything that fetches or expands."""

from __future__ import annotations

from typing import Any

from lxml import etree

from gpubed.backends.virtualwall.faults import Malformed
from gpubed.core import reading

LIMIT = 32 * 2**20  # bytes; the advertisement of a large site has a few million
_PARTS = 2_000_000  # tags and attributes; each takes many times its bytes once it is parsed
_LONGEST = 200
_FORBIDDEN = ("<!DOCTYPE", "<!ENTITY")


def bounded(data: bytes | str, what: str) -> str:
    """Return XML as text, when it is small enough to be parsed.

    Raises:
        Malformed: It is not UTF-8, or too large.
    """
    text = reading.reply(data, what, limit=LIMIT, error=Malformed).text()
    if text.count("<") + text.count("=") > _PARTS:
        raise Malformed(f"{what} cannot be read: it has more than {_PARTS} parts")
    return text


def parse(text: str, what: str) -> Any:
    """Parse a document.

    Returns:
        Its root element (lxml).

    Raises:
        Malformed: It is too large, declares entities, or is not XML.
    """
    text = bounded(text, what)
    if any(word in text for word in _FORBIDDEN):
        raise Malformed(f"{what} declares a document type or entities, which gpubed does not read")
    parser = etree.XMLParser(
        encoding="utf-8",  # whatever the declaration says: the text came as UTF-8
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        remove_comments=True,
        remove_pis=True,
    )
    try:
        return etree.fromstring(text.encode(), parser)
    except etree.XMLSyntaxError as error:
        raise Malformed(f"{what} is not XML: {str(error.msg)[:_LONGEST]}") from None


def inflate(text: str, what: str) -> str:
    """Unpack what an aggregate compressed (base64 of zlib).

    Raises:
        Malformed: It is not that, not UTF-8, or larger than it may be.
    """
    # Servers break base64 into lines.
    packed = reading.reply("".join(text.split()), what, limit=LIMIT, error=Malformed)
    return packed.base64().inflated().text()


def children(element: Any, name: str) -> list[Any]:
    """Return the child elements of a name, whatever their namespace."""
    return [child for child in element if local(child) == name]


def local(element: Any) -> str:
    """Return an element's name without its namespace."""
    return str(etree.QName(element).localname) if isinstance(element.tag, str) else ""
