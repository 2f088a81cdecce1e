"""Certificates and keys: two roots, a server, a slice authority, users.

As on the testbeds, the accounts' authority and the site do not share a root: whoever
verifies needs a bundle.
"""

import datetime as dt
import ipaddress
import uuid
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from .urn import make

_PEM = serialization.Encoding.PEM
_DAY = dt.timedelta(days=1)


@dataclass(frozen=True)
class Identity:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey

    @property
    def pem(self):
        """The certificate in PEM."""
        return self.certificate.public_bytes(_PEM).decode()

    def key_pem(self, passphrase=None, traditional=False):
        """Returns the private key in PEM: PKCS#8, or the older form of OpenSSL."""
        form = serialization.PrivateFormat
        how = (
            serialization.BestAvailableEncryption(passphrase.encode())
            if passphrase
            else serialization.NoEncryption()
        )
        shape = form.TraditionalOpenSSL if traditional else form.PKCS8
        return self.key.private_bytes(_PEM, shape, how).decode()

    @property
    def ssh_key(self):
        """The public key as a line of authorized_keys."""
        public = self.key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        return public.decode()


def root(authority):
    """Makes the root of an authority; its name is in the certificate, as GCF wants it."""
    key, name = ec.generate_private_key(ec.SECP256R1()), f"{authority} root"
    builder = _builder(name, key, name, 3650, True).add_extension(
        _names(make(authority, "authority", "root")), critical=False
    )
    return Identity(builder.sign(key, hashes.SHA256()), key)


def issue(issuer, name, *, urn=None, email=None, hosts=(), days=365.0, authority=False, key=None):
    """Makes a certificate that `issuer` signs; negative `days`: it has expired that long ago."""
    key = key or rsa.generate_private_key(65537, 2048)
    builder = _builder(name, key, _common_name(issuer), days, authority)
    builder = builder.add_extension(_names(urn, email, hosts), critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.key.public_key()), False
    )
    return Identity(builder.sign(issuer.key, hashes.SHA256()), key)


def urn_of(certificate):
    """Returns the first GENI name among a certificate's alternative names, or None."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    return next((uri for uri in uris if uri.startswith("urn:publicid:")), None)


def _builder(name, key, issuer_name, days, authority):
    now = dt.datetime.now(dt.UTC)
    starts = now - _DAY if days > 0 else now + (days - 1) * _DAY
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(issuer_name))
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(starts)
        .not_valid_after(now + days * _DAY)
        .add_extension(x509.BasicConstraints(authority, None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _names(urn=None, email=None, hosts=()):
    uris = [urn, f"urn:uuid:{uuid.uuid4()}"] if urn else []
    names = [x509.UniformResourceIdentifier(uri) for uri in uris]
    names += [x509.RFC822Name(email)] if email else []
    return x509.SubjectAlternativeName([*names, *(_host(host) for host in hosts)])


def _name(text):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _common_name(identity):
    return identity.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value


def _host(host):
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
