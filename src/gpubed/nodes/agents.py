"""Keys on the way to nodes that only an SSH agent can use: their files are locked, or not here."""

from __future__ import annotations

from pathlib import Path

import paramiko
from paramiko.pkey import UnknownKeyType

from gpubed.nodes.allocation import Node


def keys(node: Node) -> list[str]:
    """Return those keys; none where a node is reached by files alone."""
    return [hop.identity for hop in node.via if hop.identity and not _opens(hop.identity)]


def _opens(identity: str) -> bool:
    """Say whether a file gives its key without a passphrase."""
    try:
        paramiko.PKey.from_path(Path(identity).expanduser())
    except (OSError, TypeError, ValueError, paramiko.SSHException, UnknownKeyType):
        return False
    return True
