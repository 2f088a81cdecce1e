"""How a node proves its host keys (ADR 0011).

A token goes to the node with the request, through the testbed's API over verified TLS.
At boot the node writes down its host keys and their HMAC under that token. Whoever
answers in its place knows the token not, and cannot log in to the node to ask for it.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from gpubed.core import secret
from gpubed.core.paths import ClusterPaths

_KEYS = "/var/tmp/gpubed-host-keys"  # noqa: S108  # startup commands run as the user, who owns little else
_TOKEN = "virtualwall-proof"  # noqa: S105


def path(paths: ClusterPaths) -> Path:
    """Return the file that holds a cluster's token."""
    return paths.secrets / _TOKEN


def token(paths: ClusterPaths) -> str:
    """Return the token of a cluster, made when missing."""
    secret.ensure_token(path(paths))
    return secret.text(path(paths))


def command(paths: ClusterPaths) -> str:
    """Return what a node runs at boot: no quotes, no variables, and short enough for Emulab."""
    digest = f"openssl dgst -sha256 -hmac {token(paths)} -r {_KEYS}"
    return f"cat /etc/ssh/ssh_host_*_key.pub > {_KEYS} && {digest} > {_KEYS}.mac"


SHOW = f"cat {_KEYS} && echo -- && cat {_KEYS}.mac"


def proved(shown: str, token_: str) -> tuple[str, ...] | None:
    """Return the host keys that a node has proved; None when the proof does not hold.

    Args:
        shown: What `SHOW` printed.
        token_: The cluster's token.
    """
    keys, mark, mac = shown.partition("--\n")
    if not mark:
        return None
    expected = hmac.new(token_.encode(), keys.encode(), hashlib.sha256).hexdigest()
    told = mac.split()[0] if mac.split() else ""
    if not hmac.compare_digest(expected.encode(), told.encode()):
        return None
    return tuple(" ".join(line.split()[:2]) for line in keys.splitlines() if len(line.split()) > 1)
