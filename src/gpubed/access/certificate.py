"""Checks the certificate authority of a cluster's JupyterLab, and lists how to trust it."""

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
    """A certificate that is safe to trust, because it is limited to the names of one node."""

    certificate: Path
    sha256: str  # the fingerprint that browsers show
    sha1: str  # the fingerprint by which Windows finds certificates
    names: tuple[str, ...]  # the host names and addresses that it may vouch for


def authority(certificate: Path, head: Node) -> Authority:
    """Return the authority of a cluster's JupyterLab if it is safe to trust.

    The head made the certificate, so root on the head may have replaced it. Raises `GpubedError` if
    there is none, or if it may vouch for more than the head.
    """
    kept = reading.file(certificate, _MAKE, limit=_LARGEST)
    try:
        found = x509.load_pem_x509_certificate(kept.data)
        # Systems would also trust further certificates in the file.
        if found.public_bytes(Encoding.PEM).strip() != kept.data.strip():
            raise ValueError("the file has more than one certificate")
        _require_signing_alone(found.extensions)
        names = _permitted(found.extensions)
        if foreign := sorted(set(names) - _names(head)):
            raise ValueError(f"it may vouch for {', '.join(foreign)}, which {head.name} is not")
    except _MALFORMED as error:
        raise GpubedError(f"{certificate} is not to be trusted: {error}", _MAKE) from error
    shown = found.fingerprint(SHA256()).hex(":").upper()
    sha1 = found.fingerprint(SHA1()).hex()  # noqa: S303
    return Authority(certificate, shown, sha1, tuple(names))


def _names(head: Node) -> set[str]:
    """Return the names to which role jupyterlab limits the authority."""
    names = {head.name, head.control_address, head.experiment_address or "", "localhost"}
    normalized = {"127.0.0.1"}
    for name in names:
        with suppress(ValueError):
            normalized.add(str(ip_address(name)))
    return names | normalized


def _extension(extensions: x509.Extensions, kind: type[_Kind]) -> x509.Extension[_Kind]:
    try:
        return extensions.get_extension_for_class(kind)
    except x509.ExtensionNotFound:
        raise ValueError(f"it has no {kind.__name__}") from None


def _require_signing_alone(extensions: x509.Extensions) -> None:
    """Refuse a certificate that a server could present: name constraints do not limit itself."""
    basic = _extension(extensions, x509.BasicConstraints).value
    if not basic.ca or basic.path_length != 0:
        raise ValueError("it is no authority, or can sign other authorities")
    usage = _extension(extensions, x509.KeyUsage).value
    named = any(isinstance(each.value, x509.SubjectAlternativeName) for each in extensions)
    if named or usage != _SIGNING:
        raise ValueError("a server could present it as its own certificate")


def _permitted(extensions: x509.Extensions) -> list[str]:
    """Return the host names and addresses that an authority may vouch for; refuse other kinds."""
    limits = _extension(extensions, x509.NameConstraints)
    permitted, names = limits.value.permitted_subtrees or [], []
    # Kinds of names without a constraint would be unlimited.
    if not limits.critical or set(map(type, permitted)) != {x509.DNSName, x509.IPAddress}:
        raise ValueError("it is not limited to host names and addresses")
    for each in permitted:
        name = str(each.value)
        if isinstance(each, x509.IPAddress):
            network = ip_network(name)
            if network.num_addresses != 1:
                raise ValueError(f"it may vouch for all addresses of {network}")
            name = str(network.network_address)
        names.append(name)
    return names


def steps(cluster: str, trusted: Authority) -> dict[str, list[str]]:
    """Return the commands that make each system or browser trust and forget an authority."""
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
