"""Certificates and keys: roots, a server, users.

As on the testbeds, the accounts' authority and the site do not share a root: a client that verifies
needs a bundle.
"""

import datetime as dt
import ipaddress
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

_PEM = serialization.Encoding.PEM
_DAY = dt.timedelta(days=1)


@dataclass(frozen=True)
class Identity:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey

    @property
    def pem(self):
        return self.certificate.public_bytes(_PEM).decode()

    def key_pem(self, passphrase=None, traditional=False):
        """Returns the private key in PEM: PKCS#8, or the older form of OpenSSL."""
        form, how = serialization.PrivateFormat, serialization.NoEncryption()
        if passphrase:
            how = serialization.BestAvailableEncryption(passphrase.encode())
        shape = form.TraditionalOpenSSL if traditional else form.PKCS8
        return self.key.private_bytes(_PEM, shape, how).decode()


def root(authority):
    key, name = ec.generate_private_key(ec.SECP256R1()), f"{authority} root"
    return Identity(_builder(name, key, name, 3650, True).sign(key, hashes.SHA256()), key)


def issue(issuer, name, *, urn=None, hosts=(), days=365.0, key=None):
    """Makes a certificate that `issuer` signs; negative `days`: it has expired that long ago."""
    key = key or rsa.generate_private_key(65537, 2048)
    by = issuer.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
    addresses = [_host(host) for host in hosts]
    uris = [x509.UniformResourceIdentifier(urn)] if urn else []
    builder = _builder(name, key, by, days, False)
    if named := [*uris, *addresses]:
        builder = builder.add_extension(x509.SubjectAlternativeName(named), critical=False)
    return Identity(builder.sign(issuer.key, hashes.SHA256()), key)


def _host(name):
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def urn_of(certificate):
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return found.get_values_for_type(x509.UniformResourceIdentifier)[0]


def _builder(name, key, issuer_name, days, authority):
    now = dt.datetime.now(dt.UTC)
    starts = now - _DAY if days > 0 else now + (days - 1) * _DAY
    called = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, n)]) for n in (name, issuer_name)]
    return (
        x509.CertificateBuilder()
        .subject_name(called[0])
        .issuer_name(called[1])
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(starts)
        .not_valid_after(now + days * _DAY)
        .add_extension(x509.BasicConstraints(authority, None), critical=True)
    )
