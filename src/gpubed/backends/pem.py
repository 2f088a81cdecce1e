"""The login PEM of an account portal: one file with a user's certificate and private key."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from gpubed.core import files
from gpubed.core.errors import PrerequisiteMissing

RENEW = "download a new login certificate from the account portal"
_LARGEST = 2**20  # bytes


def read(path: Path, key: str) -> bytes:
    """Return a PEM file's content; `key` is its key in cluster.yml, for errors."""
    try:
        return files.read(path, _LARGEST)
    except OSError as error:
        raise PrerequisiteMissing(
            f"the login {path} cannot be read: {error.strerror}",
            f"download it from the account portal, or correct {key} in cluster.yml",
        ) from None


def user(path: Path, content: bytes) -> tuple[str, datetime]:
    """Return the URN of a certificate's user and the end of the certificate's validity.

    Raises PrerequisiteMissing if it names no user, or has expired.
    """
    uris: list[str] = []
    try:
        certificate = x509.load_pem_x509_certificate(content)
        with suppress(x509.ExtensionNotFound, x509.DuplicateExtension):
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
            uris = names.value.get_values_for_type(x509.UniformResourceIdentifier)
    except (ValueError, x509.InvalidVersion) as error:
        why = f"the certificate in {path} cannot be read: {error}"
        raise PrerequisiteMissing(why, RENEW) from None
    urns = [uri for uri in uris if uri.startswith("urn:publicid:IDN+") and "+user+" in uri]
    if not urns:
        raise PrerequisiteMissing(f"the certificate in {path} names no user of a testbed", RENEW)
    expires = certificate.not_valid_after_utc
    if expires <= datetime.now(UTC):
        raise PrerequisiteMissing(f"{path} expired on {expires:%Y-%m-%d %H:%M} UTC", RENEW)
    return urns[0], expires


def context(
    path: Path, authorities: str | None, key: str, password: Callable[[], bytes]
) -> ssl.SSLContext:
    """Return a TLS context that sends the certificate and verifies servers.

    Args:
        path: PEM file with the certificate and its private key.
        authorities: File of the CA certificates to trust; None for the system's.
        key: The key of cluster.yml for `authorities`.
        password: Returns the password of an encrypted key; OpenSSL would ask on the terminal.
    """
    bundle = Path(authorities).expanduser() if authorities else None
    try:
        made = ssl.create_default_context(cafile=bundle)
    except (OSError, ssl.SSLError) as error:
        why = f"{bundle} cannot be read: {error.strerror or error}"
        raise PrerequisiteMissing(why, f"correct {key} in cluster.yml") from None
    try:
        made.load_cert_chain(path, password=password)
    except (OSError, ValueError) as error:
        raise PrerequisiteMissing(
            f"the login {path} cannot be used: its private key is missing or another "
            f"certificate's, or its password is wrong ({error})",
            RENEW,
        ) from None
    return made
