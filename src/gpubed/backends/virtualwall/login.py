"""The login PEM: the user's certificate and key, which may be encrypted.

The certificate's subjectAltName names the user. The key never leaves this machine; only for SSH to
a bastion it becomes a file of the cluster's secrets.
"""

from __future__ import annotations

import os
import re
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from gpubed.backends.virtualwall import documents
from gpubed.backends.virtualwall.config import Config
from gpubed.backends.virtualwall.documents import Urn
from gpubed.backends.virtualwall.faults import LoginRefused
from gpubed.core import files, secret
from gpubed.core.errors import PrerequisiteMissing

PASSPHRASE_VARIABLE = "GPUBED_LOGIN_PASSPHRASE_FILE"  # noqa: S105
_LARGEST = 2**20
_BLOCK = r"-----BEGIN {0}-----.+?-----END {0}-----\n?"
_CERTIFICATE = re.compile(_BLOCK.format("CERTIFICATE").encode(), re.DOTALL)
_KEY = re.compile(_BLOCK.format("(?:RSA |EC |ENCRYPTED )?PRIVATE KEY").encode(), re.DOTALL)
_RENEW = "download a new login certificate from the account portal"


@dataclass(frozen=True)
class Login:
    """A user of the federation.

    Attributes:
        user: The user's URN; its name is the login on nodes.
        public_key: The key's public half in OpenSSH form.
        encrypted: Whether the key in the file is encrypted.
        private_pem: The key without encryption.
    """

    path: Path
    user: Urn
    expires: datetime
    public_key: str
    encrypted: bool
    private_pem: bytes = field(repr=False)


def load(config: Config) -> Login:
    """Read the login."""
    path = Path(config.login).expanduser()
    try:
        data = files.read(path, _LARGEST)
    except OSError as error:
        raise LoginRefused(
            f"the login {path} cannot be read: {error.strerror}",
            "download it from the account portal, or correct backend.login in cluster.yml",
        ) from None
    pem, key = _CERTIFICATE.search(data), _KEY.search(data)
    if pem is None or key is None:
        lacks = "certificate" if pem is None else "private key"
        raise LoginRefused(f"the login {path} holds no {lacks}", _RENEW)
    try:
        certificate = x509.load_pem_x509_certificate(pem[0])
    except (ValueError, x509.InvalidVersion) as error:
        raise LoginRefused(f"the certificate in {path} cannot be read: {error}", _RENEW) from None
    expires, now = certificate.not_valid_after_utc, datetime.now(UTC)
    if expires <= now:
        raise LoginRefused(f"the login certificate {path} expired on {expires:%Y-%m-%d}", _RENEW)
    if certificate.not_valid_before_utc > now:
        raise LoginRefused(
            f"the login certificate {path} is not valid yet", "compare this machine's clock: date"
        )
    private = _private_key(config, path, key[0])
    public = private.public_key()
    if public != certificate.public_key():
        raise LoginRefused(f"the key in {path} does not belong to its certificate", _RENEW)
    try:
        text = public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
        pem_form = (Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
        plain = private.private_bytes(*pem_form)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise LoginRefused(f"the key in {path} cannot be used: {error}", _RENEW) from None
    user = _user(path, certificate)
    return Login(path, user, expires, text, b"ENCRYPTED" in key[0], plain)


def context(config: Config) -> ssl.SSLContext:
    """Return the TLS context with the user's certificate and the trusted CAs."""
    bundle = Path(config.ca).expanduser() if config.ca else None
    try:
        made = ssl.create_default_context(cafile=bundle)
    except (OSError, ssl.SSLError) as error:
        why = error.strerror if isinstance(error, FileNotFoundError) else error
        raise PrerequisiteMissing(
            f"the CA bundle {bundle} cannot be read: {why}", "correct backend.ca in cluster.yml"
        ) from None
    # Python 3.13 requires of CAs what Emulab's lack: a key usage, and a
    # critical basic constraint. Chain, dates and host name are verified all the same.
    made.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if config.old_tls:
        made.set_ciphers("DEFAULT@SECLEVEL=1")
    path, passphrase = Path(config.login).expanduser(), _passphrase(config) or b""
    try:
        # Without a password, OpenSSL would ask for one on the terminal.
        made.load_cert_chain(path, password=lambda: passphrase)
    except (OSError, ValueError) as error:
        raise LoginRefused(f"the login {path} cannot be used: {error}", _RENEW) from None
    return made


def _private_key(config: Config, path: Path, key: bytes) -> Any:
    passphrase = _passphrase(config) if b"ENCRYPTED" in key else None
    if b"ENCRYPTED" in key and passphrase is None:
        raise LoginRefused(
            f"the key in {path} is encrypted",
            f"put its passphrase into a file (mode 0600) and name that in backend.passphrase_file "
            f"or {PASSPHRASE_VARIABLE}",
        )
    try:
        return load_pem_private_key(key, passphrase)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        why, fix = "its format is unknown", _RENEW
        if passphrase:
            why, fix = "the passphrase is wrong", f"put the right one into {_passphrase_at(config)}"
        raise LoginRefused(f"the key in {path} cannot be read: {why}", fix) from None


def _passphrase(config: Config) -> bytes | None:
    fix = f"correct backend.passphrase_file in cluster.yml, or {PASSPHRASE_VARIABLE}"
    path = _passphrase_at(config)
    return secret.password(path, fix) if path else None


def _passphrase_at(config: Config) -> Path | None:
    named = os.environ.get(PASSPHRASE_VARIABLE) or config.passphrase_file
    return Path(named).expanduser() if named else None


def _user(path: Path, certificate: x509.Certificate) -> Urn:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        found = names.get_values_for_type(x509.UniformResourceIdentifier)
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        found = []
    for text in found:
        if text.startswith("urn:publicid:"):
            return documents.urn(text, "user")
    raise LoginRefused(f"the certificate in {path} names no user of the federation", _RENEW)
