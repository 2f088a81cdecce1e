"""The login PEM of a GPULab account: one file with certificate and private key."""

from __future__ import annotations

import ssl
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from cryptography import x509

from gpubed.backends.gpulab.config import Config
from gpubed.core import reading, secret
from gpubed.core.errors import PrerequisiteMissing
from gpubed.core.reading import Unreadable

_LARGEST = 2**20  # bytes
_FIX = "fetch your certificate from the account portal, then set backend.certificate"
_USER_URN = "urn:publicid:IDN+"
# Accounts of the former portal, which the service refuses.
_FORMER = "urn:publicid:IDN+wall2.ilabt.iminds.be+user+"


class Login(NamedTuple):
    """A certificate's user (`urn:publicid:IDN+<authority>+user+<name>`) and end of validity."""

    urn: str
    expires: datetime

    def project_urn(self, project: str) -> str:
        """Return the URN of a project of the user's authority."""
        authority = self.urn.removeprefix(_USER_URN).split("+")[0]
        return f"{_USER_URN}{authority}+project+{project}"


def read(config: Config) -> Login:
    """Read the user and validity of the certificate."""
    path = Path(config.certificate).expanduser()
    try:
        certificate = x509.load_pem_x509_certificate(reading.file(path, limit=_LARGEST).data)
    except Unreadable as error:
        raise PrerequisiteMissing(error.message, _FIX) from None
    except (ValueError, x509.InvalidVersion) as error:
        raise PrerequisiteMissing(f"{path} holds no PEM certificate", _FIX) from error
    login = Login(_user(certificate, path), certificate.not_valid_after_utc)
    if login.expires <= datetime.now(UTC):
        raise PrerequisiteMissing(f"{path} expired on {login.expires:%Y-%m-%d %H:%M} UTC", _FIX)
    if login.urn.startswith(_FORMER):
        raise PrerequisiteMissing(
            f"{login.urn} is an account of the former portal, which GPULab refuses", _FIX
        )
    return login


def context(config: Config) -> ssl.SSLContext:
    """Return a TLS context that sends the certificate and verifies the server."""
    try:
        made = ssl.create_default_context(
            cafile=str(Path(config.ca_bundle).expanduser()) if config.ca_bundle else None
        )
    except (OSError, ssl.SSLError) as error:
        raise PrerequisiteMissing(
            f"{config.ca_bundle} cannot be read: {error.strerror or error}", "set backend.ca_bundle"
        ) from error
    path = Path(config.certificate).expanduser()
    try:
        # A function, since OpenSSL would otherwise ask on the terminal.
        made.load_cert_chain(path, password=lambda: _password(config))
    except ssl.SSLError as error:
        raise PrerequisiteMissing(
            f"the private key in {path} is missing, is another certificate's, "
            "or its password is wrong",
            "the file needs both the certificate and its key; see backend.password_file",
        ) from error
    return made


def _password(config: Config) -> bytes:
    if config.password_file is None:
        raise PrerequisiteMissing(
            f"the private key in {config.certificate} has a password",
            "put the password into a file of mode 0600 and set backend.password_file",
        )
    return secret.password(Path(config.password_file).expanduser(), "correct backend.password_file")


def _user(certificate: x509.Certificate, path: Path) -> str:
    uris: list[str] = []
    with suppress(x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        uris = names.value.get_values_for_type(x509.UniformResourceIdentifier)
    for uri in uris:
        if uri.startswith(_USER_URN) and "+user+" in uri:
            return uri
    raise PrerequisiteMissing(f"{path} names no user of a testbed portal", _FIX)
