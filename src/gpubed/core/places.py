"""The one spelling of a place: what hosts, URLs and URNs say can be written in several ways."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit, urlunsplit

_HTTPS = 443
_URN = "urn:publicid:IDN"


def ssh(address: str, port: int) -> str:
    """Return where SSH answers, in one word."""
    return address if port == 22 else f"{address}:{port}"


def host(name: str) -> str:
    """Return a host's name or address: small letters, no final dot, IPv6 at its shortest."""
    bare = name.removeprefix("[").removesuffix("]").removesuffix(".").lower()
    try:
        return str(ip_address(bare))
    except ValueError:
        return bare


def url(text: str) -> str:
    """Return a URL with its host so, and without the port that `https` has by itself."""
    try:
        parts = urlsplit(text)
        port = "" if parts.port in (None, _HTTPS) else f":{parts.port}"
    except ValueError:
        return text  # it leads nowhere, whatever its spelling
    name = host(parts.hostname or "")
    place = f"[{name}]" if ":" in name else name
    return urlunsplit((parts.scheme, f"{place}{port}", parts.path, parts.query, ""))


def urn(text: str) -> str:
    """Return a URN of the federation: who gave the name is a host's; the name is its own."""
    head, plus, rest = text.partition("+")
    if head.lower() != _URN.lower() or not plus:
        return text
    authority, plus, name = rest.partition("+")
    return f"{_URN}+{authority.lower()}{plus}{name}"
