"""The login PEM, with the user's certificate and key, and the hops to nodes through a bastion.

The key may be encrypted and never leaves this machine. For SSH to a bastion, the cluster's secrets
have an unencrypted copy of a key that has no passphrase.
"""

from __future__ import annotations

import os
import re
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from shlex import quote

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from gpubed.backends import pem
from gpubed.backends.virtualwall import documents
from gpubed.backends.virtualwall.config import Bastion, Config
from gpubed.backends.virtualwall.documents import Urn
from gpubed.core import secret
from gpubed.core.errors import PrerequisiteMissing
from gpubed.core.paths import ClusterPaths
from gpubed.core.reading import Missing
from gpubed.nodes.allocation import Hop
from gpubed.nodes.host_keys import keys as known_keys

PASSPHRASE_VARIABLE = "GPUBED_LOGIN_PASSPHRASE_FILE"  # noqa: S105
# Accounts of this authority are named `fff…` at the bastion; older ones are not.
_PREFIXED, _PREFIX = "ilabt.imec.be", "fff"
KNOWN_HOSTS = Path("~/.ssh/known_hosts")
_KEY = re.compile(
    rb"-----BEGIN ((?:RSA |EC |ENCRYPTED )?PRIVATE KEY)-----.+?-----END \1-----", re.S
)


@dataclass(frozen=True)
class Login:
    """A user of the federation."""

    path: Path
    user: Urn  # the user's URN; its name is the login on nodes
    expires: datetime
    public_key: str  # the key's public half in OpenSSH form
    encrypted: bool  # whether the key in the file is encrypted
    private_pem: bytes = field(repr=False)  # the key without encryption


def load(config: Config) -> Login:
    """Read the login; raise PrerequisiteMissing if it cannot be used."""
    path = Path(config.login).expanduser()
    data = pem.read(path, "backend.login")
    key = _KEY.search(data)
    if key is None or b"-----BEGIN CERTIFICATE-----" not in data:
        lacks = "private key" if key is None else "certificate"
        raise PrerequisiteMissing(f"the login {path} holds no {lacks}", pem.RENEW)
    encrypted, passphrase = b"ENCRYPTED" in key[0], None
    if encrypted and (passphrase := _passphrase(config)) is None:
        raise PrerequisiteMissing(
            f"the key in {path} is encrypted",
            f"put its passphrase into a file (mode 0600) and name that in backend.passphrase_file "
            f"or {PASSPHRASE_VARIABLE}",
        )
    urn, expires = pem.user(path, data)
    try:
        private = load_pem_private_key(key[0], passphrase)
        public = private.public_key()
        text = public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
        form = (Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
        plain = private.private_bytes(*form)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        why, fix = "its format is unknown", pem.RENEW
        if passphrase:
            why, fix = "the passphrase is wrong", f"put the right one into {_passphrase_at(config)}"
        raise PrerequisiteMissing(f"the key in {path} cannot be read: {why}", fix) from None
    return Login(path, documents.urn(urn, "user"), expires, text, encrypted, plain)


def context(config: Config) -> ssl.SSLContext:
    """Return the TLS context with the user's certificate and the trusted CAs."""
    path = Path(config.login).expanduser()
    made = pem.context(path, config.ca, "backend.ca", lambda: _passphrase(config) or b"")
    # Python 3.13 refuses Emulab's CA certificates, which lack a key usage and a critical basic
    # constraint. Chain, dates and host name are still verified.
    made.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if config.old_tls:
        made.set_ciphers("DEFAULT@SECLEVEL=1")
    return made


def _passphrase(config: Config) -> bytes | None:
    fix = f"correct backend.passphrase_file in cluster.yml, or {PASSPHRASE_VARIABLE}"
    path = _passphrase_at(config)
    return secret.password(path, fix) if path else None


def _passphrase_at(config: Config) -> Path | None:
    named = os.environ.get(PASSPHRASE_VARIABLE) or config.passphrase_file
    return Path(named).expanduser() if named else None


def hops(config: Config, login: Login, paths: ClusterPaths) -> tuple[Hop, ...]:
    """Return the hops to nodes, if any; PrerequisiteMissing if the bastion's key is unknown."""
    there = config.bastion
    if there is None:
        return ()
    renew_identity(config, login, paths)
    user, keys = bastion_user(there, login), host_keys(there)
    identity = str(login.path if login.encrypted else _identity_file(paths))
    return (Hop(address=there.host, port=there.port, user=user, host_keys=keys, identity=identity),)


def bastion_user(bastion: Bastion, login: Login) -> str:
    """Return the user's account name at the bastion."""
    prefix = _PREFIX if login.user.authority == _PREFIXED else ""
    return bastion.user or prefix + login.user.name


def host_keys(bastion: Bastion) -> tuple[str, ...]:
    """Return the bastion's host keys, from the specification or the user's known_hosts."""
    found = bastion.host_keys
    if not found:
        with suppress(Missing):
            found = known_keys(KNOWN_HOSTS.expanduser(), bastion.host, bastion.port)
    if not found:
        raise PrerequisiteMissing(
            f"the host key of the bastion {bastion.host} is not known",
            f"ssh -p {bastion.port} {bastion.host} true, and compare the fingerprint with the "
            "testbed's page; or write it into backend.bastion.host_keys",
        )
    return found


def require(bastion: Bastion, login: Login) -> None:
    """Raise PrerequisiteMissing unless the bastion's host key is known and the login is usable."""
    host_keys(bastion)
    held = {key.get_base64() for key in paramiko.Agent().get_keys()} if login.encrypted else ()
    if login.encrypted and login.public_key.split()[1] not in held:
        raise PrerequisiteMissing(
            f"the bastion needs the key of {login.path}, which has a passphrase "
            "and is not held by an SSH agent",
            f"ssh-add {quote(str(login.path))}",
        )


def renew_identity(config: Config, login: Login, paths: ClusterPaths) -> None:
    """Write the login's key to a file for OpenSSH, unless an SSH agent must hold it."""
    if config.bastion and not login.encrypted:
        secret.write(_identity_file(paths), login.private_pem)


def _identity_file(paths: ClusterPaths) -> Path:
    return paths.secrets / "virtualwall-login"
