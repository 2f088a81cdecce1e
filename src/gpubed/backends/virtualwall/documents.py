"""XML that others wrote: read with limits, and without anything that fetches or expands."""

from __future__ import annotations

import zlib
from base64 import b64decode
from binascii import Error as Base64Error
from typing import Any

from lxml import etree

from gpubed.backends.virtualwall.faults import Malformed

LIMIT = 32 * 2**20  # bytes; the advertisement of a large site has a few million
_FORBIDDEN = ("<!DOCTYPE", "<!ENTITY")


def parse(text: str, what: str) -> Any:
    """Parse a document.

    Returns:
        Its root element (lxml).

    Raises:
        Malformed: It is too large, declares entities, or is not XML.
    """
    data = text.encode(errors="surrogatepass")
    if len(data) > LIMIT:
        raise Malformed(f"{what} is larger than {LIMIT >> 20} MiB")
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
        return etree.fromstring(data, parser)
    except etree.XMLSyntaxError as error:
        raise Malformed(f"{what} is not XML: {error.msg}") from None


def inflate(text: str, what: str) -> str:
    """Unpack what an aggregate compressed (base64 of zlib).

    Raises:
        Malformed: It is not that, not UTF-8, or larger than it may be.
    """
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(b64decode(text, validate=False), LIMIT + 1)
        if len(data) > LIMIT:
            raise Malformed(f"{what} is larger than {LIMIT >> 20} MiB")
        if not unpacker.eof:
            raise Malformed(f"{what} cannot be decompressed: it is cut off")
        return data.decode()
    except (Base64Error, zlib.error):
        raise Malformed(f"{what} cannot be decompressed") from None
    except UnicodeDecodeError:
        raise Malformed(f"{what} is not UTF-8") from None


def children(element: Any, name: str) -> list[Any]:
    """Return the child elements of a name, whatever their namespace."""
    return [child for child in element if local(child) == name]


def local(element: Any) -> str:
    """Return an element's name without its namespace."""
    return str(etree.QName(element).localname) if isinstance(element.tag, str) else ""
