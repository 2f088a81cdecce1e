"""Variables and files of this machine that nodes need to reach package registries.

Nodes do not get URLs with a password; `doctor` reports them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from gpubed.core import reading

_BUNDLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_INDEXES = ("PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX")
_LISTS = ("PIP_EXTRA_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL")

_RESOLVERS = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))
_CERTIFICATES = Path("/etc/ssl/certs")
NODE_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"


def environment() -> dict[str, str]:
    """Return the variables for downloads on nodes."""
    given = {name: os.environ.get(name) for name in (*_INDEXES, *_LISTS)}
    kept = {name: value for name, value in given.items() if value and refusal(value) is None}
    bundles = {name: NODE_BUNDLE for name in _BUNDLES if name in os.environ}
    return {**kept, **bundles, **proxies()}


def proxies() -> dict[str, str]:
    """Return the proxy variables, in upper and lower case."""
    found = {}
    for name in _PROXIES:
        value = os.environ.get(name) or os.environ.get(name.lower())
        if value and refusal(value) is None:
            found[name] = found[name.lower()] = value
    return found


def left_out() -> dict[str, str]:
    """Return the variables that are withheld from nodes, each with the reason."""
    names = (*_INDEXES, *_LISTS, *_PROXIES, *(proxy.lower() for proxy in _PROXIES))
    return {name: why for name in names if (why := refusal(os.environ.get(name, "")))}


def refusal(value: str) -> str | None:
    """Return why nodes must not get a value; None if they may."""
    for part in value.split():
        if "@" in part:
            return "holds a user name or password"
        if "://" in part and _is_loopback(urlsplit(part).hostname or ""):
            return "names this machine by an address that nodes cannot reach"
    return None


def ca_bundle() -> Path | None:
    """Return this machine's own CA bundle, if the environment names one."""
    named = next((os.environ[name] for name in _BUNDLES if os.environ.get(name)), None)
    return Path(named).resolve() if named and Path(named).is_file() else None


def ca_mount() -> dict[str, str]:
    """Return the read-only mount (source to target) of this machine's CA bundle, if it has one."""
    bundle = ca_bundle()
    if bundle is None:
        return {}
    if bundle.parent == _CERTIFICATES:
        return {str(_CERTIFICATES): str(_CERTIFICATES)}
    return {str(bundle): NODE_BUNDLE}


def nameservers(files: Iterable[Path] = _RESOLVERS) -> list[str]:
    """Return this machine's name servers that nodes can reach: not those on the loopback."""
    for path in files:
        lines = reading.file(path).text().splitlines() if path.is_file() else []
        words = [line.split() for line in lines]
        named = [word[1] for word in words if word[:1] == ["nameserver"] and len(word) > 1]
        if reachable := [address for address in named if not _is_loopback(address)]:
            return reachable
    return []


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
