"""How a person's systems and browsers learn to trust the certificate of a cluster's JupyterLab."""

from __future__ import annotations

import hashlib
import ssl
from pathlib import Path
from shlex import quote

from gpubed import files
from gpubed.errors import GpubedError

_LARGEST = 2**16


def fingerprint(certificate: Path) -> str:
    """Return the SHA-256 fingerprint, as browsers show it.

    Raises:
        GpubedError: There is no certificate.
    """
    try:
        der = ssl.PEM_cert_to_DER_cert(files.read(certificate, _LARGEST).decode("ascii"))
    except (OSError, ValueError) as error:
        raise GpubedError(
            f"there is no certificate in {certificate}",
            "gpubed configure CLUSTER --tags jupyterlab",
        ) from error
    return hashlib.sha256(der).digest().hex(":").upper()


def steps(cluster: str, certificate: Path) -> dict[str, list[str]]:
    """Return by system or browser what makes it trust the certificate, and forget it again."""
    name, path = f"gpubed-{cluster}", quote(str(certificate))
    return {
        "Debian, Ubuntu (curl, Python)": [
            f"sudo cp {path} /usr/local/share/ca-certificates/{name}.crt",
            "sudo update-ca-certificates",
            f"# forget: sudo rm /usr/local/share/ca-certificates/{name}.crt"
            " && sudo update-ca-certificates",
        ],
        "Fedora, RHEL (curl, Python)": [
            f"sudo cp {path} /etc/pki/ca-trust/source/anchors/{name}.crt",
            "sudo update-ca-trust",
            f"# forget: sudo rm /etc/pki/ca-trust/source/anchors/{name}.crt"
            " && sudo update-ca-trust",
        ],
        "macOS (Safari, Chrome)": [
            "security add-trusted-cert -r trustRoot -p ssl"
            f" -k ~/Library/Keychains/login.keychain-db {path}",
            f"# forget: security remove-trusted-cert {path}",
        ],
        "Windows (Edge, Chrome)": [
            f"certutil -user -addstore Root {certificate.name}",
            '# forget: certutil -user -delstore Root "JupyterLab authority"',
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
