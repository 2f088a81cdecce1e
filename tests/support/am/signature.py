"""XML signatures of GENI credentials: enveloped, inclusive C14N 1.0, RSA.

Two traps: canonicalising an element inside a tree adds spurious `xmlns=""` (so it is
parsed anew first), and C14N of a part inherits the `xml:` attributes of what is above
it (so SignedInfo carries the `xml:id` of its Signature).
"""

import base64
import hashlib

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from lxml import etree

DSIG = "http://www.w3.org/2000/09/xmldsig#"
_C14N = "http://www.w3.org/TR/2001/REC-xml-c14n-20010315"
_ENVELOPED = f"{DSIG}enveloped-signature"
_XML = "{http://www.w3.org/XML/1998/namespace}"
_METHODS = {
    f"{DSIG}rsa-sha1": hashes.SHA1,
    "http://www.w3.org/2001/04/xmldsig-more#rsa-sha256": hashes.SHA256,
}
_DIGESTS = {
    f"{DSIG}sha1": hashlib.sha1,
    "http://www.w3.org/2001/04/xmlenc#sha256": hashlib.sha256,
}


class BadSignature(Exception):
    """What is wrong with a signature."""


def canonical(element):
    """Returns the canonical bytes of an element as part of its document."""
    copy = etree.fromstring(etree.tostring(element, with_tail=False))
    for above in element.iterancestors():
        for name, value in above.attrib.items():
            if name.startswith(_XML) and name not in copy.attrib:
                copy.set(name, value)
    return etree.tostring(copy, method="c14n")


def sign(credential, signatures, signer):
    """Appends to `signatures` one by `signer` (an Identity) over `credential`."""
    reference = credential.get(f"{_XML}id")
    digest = base64.b64encode(hashlib.sha1(canonical(credential)).digest()).decode()
    certificate = "".join(signer.pem.splitlines()[1:-1])
    signatures.append(
        etree.fromstring(
            f'<Signature xmlns="{DSIG}" xml:id="Sig_{reference}"><SignedInfo>'
            f'<CanonicalizationMethod Algorithm="{_C14N}"/>'
            f'<SignatureMethod Algorithm="{DSIG}rsa-sha1"/><Reference URI="#{reference}">'
            f'<Transforms><Transform Algorithm="{_ENVELOPED}"/></Transforms>'
            f'<DigestMethod Algorithm="{DSIG}sha1"/><DigestValue>{digest}</DigestValue>'
            "</Reference></SignedInfo><SignatureValue/><KeyInfo><X509Data>"
            f"<X509Certificate>{certificate}</X509Certificate></X509Data></KeyInfo></Signature>"
        )
    )
    made = signatures[-1]
    octets = signer.key.sign(canonical(made[0]), padding.PKCS1v15(), hashes.SHA1())
    made[1].text = base64.b64encode(octets).decode()


def verify(credential, signature):
    """Checks a signature over `credential`; returns the certificates of the signer, first hers.

    Raises:
        BadSignature: It is not good.
    """
    reference = _one(signature, "SignedInfo/Reference")
    if reference.get("URI") != f"#{credential.get(f'{_XML}id')}":
        raise BadSignature("the signature is about something else")
    transforms = [t.get("Algorithm") for t in _all(reference, "Transforms/Transform")]
    methods = _one(signature, "SignedInfo/CanonicalizationMethod").get("Algorithm"), transforms
    if methods != (_C14N, [_ENVELOPED]):
        raise BadSignature(f"unsupported canonicalization {methods}")
    digest = _algorithm(_DIGESTS, _one(reference, "DigestMethod"))
    if digest(canonical(credential)).digest() != _octets(_one(reference, "DigestValue")):
        raise BadSignature("digest does not match: the credential has been changed")
    certificates = [
        x509.load_der_x509_certificate(_octets(found))
        for found in _all(signature, "KeyInfo/X509Data/X509Certificate")
    ]
    if not certificates:
        raise BadSignature("Cannot find signer certs in credential")
    _check_value(signature, certificates[0].public_key())
    return certificates


def _check_value(signature, public_key):
    if not isinstance(public_key, rsa.RSAPublicKey):
        raise BadSignature("the signer's key is not RSA")
    signed = _one(signature, "SignedInfo")
    method = _algorithm(_METHODS, _one(signed, "SignatureMethod"))
    value = _octets(_one(signature, "SignatureValue"))
    try:
        public_key.verify(value, canonical(signed), padding.PKCS1v15(), method())
    except InvalidSignature:
        raise BadSignature("signature does not match") from None


def _all(element, path):
    return element.findall("/".join(f"{{{DSIG}}}{part}" for part in path.split("/")))


def _one(element, path):
    found = _all(element, path)
    if len(found) != 1:
        raise BadSignature(f"{len(found)} elements {path} in the signature")
    return found[0]


def _algorithm(known, element):
    name = element.get("Algorithm")
    if name not in known:
        raise BadSignature(f"unsupported algorithm {name}")
    return known[name]


def _octets(element):
    try:
        return base64.b64decode("".join((element.text or "").split()), validate=True)
    except ValueError:
        raise BadSignature("not base64") from None
