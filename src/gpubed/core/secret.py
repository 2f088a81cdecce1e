"""Stores a cluster's secrets in files on the controller; no state, log or argument has them.

The folder is 0700 and each file 0600. Roles read them with `no_log`.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from shlex import quote

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)

from gpubed.core import files, reading
from gpubed.core.errors import GpubedError, PrerequisiteMissing
from gpubed.core.paths import ClusterPaths

_LARGEST = 2**16  # bytes


def ensure_token(path: Path) -> None:
    """Write a random 256-bit token unless the file is there."""
    if not path.exists():
        write(path, secrets.token_hex(32).encode())


def ensure_key(path: Path) -> str:
    """Create an ed25519 key unless the file exists; return its public key as `public_key` does."""
    if not path.exists():
        key = Ed25519PrivateKey.generate()
        write(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return public_key(path)


def public_key(path: Path) -> str:
    """Return the public key in OpenSSH format without a comment, or "" if there is no file."""
    try:
        kept = reading.file(path, f"restore {path}", limit=_LARGEST)
    except reading.Missing:
        return ""
    try:
        private = load_ssh_private_key(kept.data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise kept.refusal("it is no private key of OpenSSH, or has a passphrase") from None
    return private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def require_key(paths: ClusterPaths) -> None:
    """Raise an error if the key to a cluster's nodes is lost or damaged."""
    if not public_key(paths.private_key):
        raise GpubedError(
            f"the cluster's SSH key is lost ({paths.private_key}), so no node accepts a login",
            f"restore it, or see what a new one changes: gpubed plan {paths.name}",
        )


def text(path: Path) -> str:
    """Return a secret that is one line of text, as `ensure_token` writes it."""
    return reading.file(path, f"restore {path}", limit=_LARGEST).text().strip()


def password(path: Path, fix: str) -> bytes:
    """Return the password in a user's file, without the trailing newline.

    Raises `PrerequisiteMissing` if other users can read the file, or it cannot be read.
    """
    try:
        if path.stat().st_mode & 0o077:
            raise PrerequisiteMissing(
                f"{path} can be read by others", f"chmod 600 {quote(str(path))}"
            )
        return files.read(path, _LARGEST).rstrip(b"\r\n")
    except OSError as error:
        raise PrerequisiteMissing(f"{path} cannot be read: {error.strerror}", fix) from None


def write(path: Path, content: bytes) -> None:
    """Write a secret atomically; only the user can read it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    files.write(path, content, 0o600)
