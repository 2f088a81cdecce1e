"""Certificates for tests: an authority, servers, and users as the portals make them."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


class Authority:
    """Signs certificates; `path` is its own."""

    def __init__(self, folder, name="Test Authority"):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self._certificate = self._sign(
            self._name, self._key, [(x509.BasicConstraints(ca=True, path_length=1), True)]
        )
        self.path = folder / "ca.pem"
        self.path.write_bytes(self._certificate.public_bytes(Encoding.PEM))

    def server(self, *, expired=False, host="localhost"):
        names = [x509.DNSName(host), x509.IPAddress(ip_address("127.0.0.1"))]
        return self._pem(
            "server", _name(host), [(x509.SubjectAlternativeName(names), False)], expired
        )

    def user(
        self, name="alice", *, authority="ilabt.imec.be", expired=False, password=None, urn=None
    ):
        """A login PEM; the user's URN is a URI of the subject's alternative names."""
        urn = urn or f"urn:publicid:IDN+{authority}+user+{name}"
        names = [x509.UniformResourceIdentifier(urn), x509.RFC822Name(f"{name}@example.org")]
        extensions = [(x509.SubjectAlternativeName(names), False)]
        return self._pem(name, _name(name), extensions, expired, password)

    def _pem(self, name, subject, extensions, expired=False, password=None):
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(subject, key, extensions, expired)
        path = self.folder / f"{name}{'-expired' if expired else ''}.pem"
        encryption = BestAvailableEncryption(password) if password else NoEncryption()
        path.write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
            + certificate.public_bytes(Encoding.PEM)
        )
        path.chmod(0o600)
        return path

    def _sign(self, subject, key, extensions, expired=False):
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 30 * DAY)
            .not_valid_after(now - DAY if expired else now + 30 * DAY)
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(self._key, hashes.SHA256())


def _name(text):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
