"""Normalizes hosts, URLs and URNs, which can be written in several ways."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit, urlunsplit

_HTTPS = 443
_URN = "urn:publicid:IDN"


def ssh(address: str, port: int) -> str:
    """Return an SSH address as `HOST` or, for a port other than 22, `HOST:PORT`."""
    return address if port == 22 else f"{address}:{port}"


def host(name: str) -> str:
    """Return a host's name or address in lowercase, without a final dot, with IPv6 compressed."""
    bare = name.removeprefix("[").removesuffix("]").removesuffix(".").lower()
    try:
        return str(ip_address(bare))
    except ValueError:
        return bare


def url(text: str) -> str:
    """Return a URL with its host normalized and without the default port of `https`."""
    try:
        parts = urlsplit(text)
        port = "" if parts.port in (None, _HTTPS) else f":{parts.port}"
    except ValueError:
        return text  # invalid
    name = host(parts.hostname or "")
    place = f"[{name}]" if ":" in name else name
    return urlunsplit((parts.scheme, f"{place}{port}", parts.path, parts.query, ""))


def urn(text: str) -> str:
    """Return a federation URN with its authority in lowercase; its name is case-sensitive."""
    head, plus, rest = text.partition("+")
    if head.lower() != _URN.lower() or not plus:
        return text
    authority, plus, name = rest.partition("+")
    return f"{_URN}+{authority.lower()}{plus}{name}"
