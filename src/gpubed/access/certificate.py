"""Checks the certificate authority of a cluster's JupyterLab, and tells how to trust it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path
from shlex import quote
from typing import TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA1, SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from gpubed.core import reading
from gpubed.core.errors import GpubedError
from gpubed.nodes.allocation import Node

_LARGEST = 2**16  # bytes
_MAKE = "gpubed configure CLUSTER --tags jupyterlab"
_MALFORMED = (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType)
_Kind = TypeVar("_Kind", bound=x509.ExtensionType)
# All but `key_cert_sign` is false.
_SIGNING = x509.KeyUsage(False, False, False, False, False, True, False, False, False)


@dataclass(frozen=True)
class Authority:
    """A certificate that is safe to trust, since it can only vouch for one node's names."""

    certificate: Path
    sha256: str  # its SHA-256 fingerprint, as browsers show it
    sha1: str  # its SHA-1 fingerprint, by which Windows finds certificates
    names: tuple[str, ...]  # the host names and addresses that it may vouch for


def authority(certificate: Path, head: Node) -> Authority:
    """Return the authority of a cluster's JupyterLab, if it is harmless to trust.

    The head made it, and root there could have handed over another one. Raises `GpubedError` if
    there is none, or it could vouch for more than the head.
    """
    kept = reading.file(certificate, _MAKE, limit=_LARGEST)
    try:
        found = x509.load_pem_x509_certificate(kept.data)
        # Systems would trust further certificates in the file, too.
        if found.public_bytes(Encoding.PEM).strip() != kept.data.strip():
            raise ValueError("there is more in it than one certificate")
        _require_signing_alone(found.extensions)
        names = _permitted(found.extensions)
        if foreign := sorted(set(names) - _known(head)):
            raise ValueError(f"it may vouch for {', '.join(foreign)}, which {head.name} is not")
    except _MALFORMED as error:
        raise GpubedError(f"{certificate} is not to be trusted: {error}", _MAKE) from error
    shown = found.fingerprint(SHA256()).hex(":").upper()
    sha1 = found.fingerprint(SHA1()).hex()  # noqa: S303
    return Authority(certificate, shown, sha1, tuple(names))


def _known(head: Node) -> set[str]:
    """Return the names that role jupyterlab lets the authority vouch for."""
    names = {head.name, head.control_address, head.experiment_address or "", "localhost"}
    found = names | {"127.0.0.1"}
    for name in names:
        with suppress(ValueError):
            found.add(str(ip_address(name)))
    return found


def _extension(extensions: x509.Extensions, kind: type[_Kind]) -> x509.Extension[_Kind]:
    try:
        return extensions.get_extension_for_class(kind)
    except x509.ExtensionNotFound:
        raise ValueError(f"it has no {kind.__name__}") from None


def _require_signing_alone(extensions: x509.Extensions) -> None:
    """Refuse an authority that could act as a server: its name limits do not bind itself."""
    basic = _extension(extensions, x509.BasicConstraints).value
    if not basic.ca or basic.path_length != 0:
        raise ValueError("it is no authority, or one that can make others")
    usage = _extension(extensions, x509.KeyUsage).value
    named = any(isinstance(one.value, x509.SubjectAlternativeName) for one in extensions)
    if named or usage != _SIGNING:
        raise ValueError("it could be shown by a server itself")


def _permitted(extensions: x509.Extensions) -> list[str]:
    """Return all that an authority may vouch for; refuse one without such limits."""
    limits = _extension(extensions, x509.NameConstraints)
    permitted, found = limits.value.permitted_subtrees or [], []
    # Kinds of names that are not listed would be unlimited.
    if not limits.critical or {type(one) for one in permitted} != {x509.DNSName, x509.IPAddress}:
        raise ValueError("it is not limited to host names and addresses")
    for one in permitted:
        found.append(str(one.value))
        if isinstance(one, x509.IPAddress):
            network = ip_network(found.pop())
            if network.num_addresses != 1:
                raise ValueError(f"it may vouch for all addresses of {network}")
            found.append(str(network.network_address))
    return found


def steps(cluster: str, trusted: Authority) -> dict[str, list[str]]:
    """Return the commands that make each system or browser trust an authority, and forget it."""
    certificate = trusted.certificate
    name, path = f"gpubed-{cluster}", quote(str(certificate))
    anchor = f"/usr/local/share/ca-certificates/{name}.crt"
    red_hat = f"/etc/pki/ca-trust/source/anchors/{name}.crt"
    mac = "security add-trusted-cert -r trustRoot -p ssl -k ~/Library/Keychains/login.keychain-db"
    return {
        "Debian, Ubuntu (curl, Python)": [
            f"sudo cp {path} {anchor}",
            "sudo update-ca-certificates",
            f"# forget: sudo rm {anchor} && sudo update-ca-certificates",
        ],
        "Fedora, RHEL (curl, Python)": [
            f"sudo cp {path} {red_hat}",
            "sudo update-ca-trust",
            f"# forget: sudo rm {red_hat} && sudo update-ca-trust",
        ],
        "macOS (Safari, Chrome)": [
            f"{mac} {path}",
            f"# forget: security remove-trusted-cert {path}",
        ],
        "Windows (Edge, Chrome)": [
            f"certutil -user -addstore Root {certificate.name}",
            f"# forget: certutil -user -delstore Root {trusted.sha1}",
        ],
        "Chrome, Chromium on Linux": [
            "sudo apt-get install libnss3-tools    # Fedora: nss-tools",
            f"certutil -d sql:$HOME/.pki/nssdb -A -t C,, -n {name} -i {path}",
            f"# forget: certutil -d sql:$HOME/.pki/nssdb -D -n {name}",
        ],
        "Firefox": [
            "# Settings > Privacy & Security > View Certificates > Authorities > Import:",
            f"# {certificate}",
            '# and tick "Trust this CA to identify websites"',
        ],
    }
