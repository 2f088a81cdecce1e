"""Credentials, geni_sfa version 3: what they say, issuing them, and checking them.

The order of the checks is Emulab's: expiry and signature, names, owner, chain, privilege.
"""

import secrets
from dataclasses import dataclass
from datetime import datetime

from lxml import etree

from . import answers, clock, pki, signature, xml

_XSI = "http://www.w3.org/2001/XMLSchema-instance"


@dataclass(frozen=True)
class Credential:
    """What a credential that has been verified says."""

    owner: str
    target: str
    expires: datetime
    privileges: frozenset[str]

    def allows(self, *wanted):
        """Says whether it has one of the privileges."""
        return "*" in self.privileges or any(name in self.privileges for name in wanted)


def issue(signer, owner, target, expires, privileges=("*",)):
    """Returns a signed credential as text.

    Args:
        signer: Identity of the authority.
        owner: Certificate (Identity) of the user.
        target: Certificate (Identity) of the slice or the user.
        expires: When it ends.
        privileges: ProtoGENI gives `*`.
    """
    number = secrets.token_hex(8).upper()
    root = etree.Element("signed-credential", nsmap={"xsi": _XSI})
    made = etree.SubElement(root, "credential")
    made.set("{http://www.w3.org/XML/1998/namespace}id", f"ref{number}")
    made.text = "\n "
    for tag, text in (
        ("type", "privilege"),
        ("serial", str(secrets.randbelow(10**6))),
        ("owner_gid", owner.pem),
        ("owner_urn", pki.urn_of(owner.certificate)),
        ("target_gid", target.pem),
        ("target_urn", pki.urn_of(target.certificate)),
        ("uuid", ""),
        ("expires", clock.stamp(expires)),
    ):
        _child(made, tag, text)
    rights = _child(made, "privileges")
    for name in privileges:
        right = _child(rights, "privilege")
        _child(right, "name", name)
        _child(right, "can_delegate", "1")
    signature.sign(made, etree.SubElement(root, "signatures"), signer)
    return etree.tostring(root, xml_declaration=True, encoding="UTF-8").decode()


def _child(parent, tag, text=None):
    child = etree.SubElement(parent, tag)
    child.text, child.tail = text, "\n "
    return child


class Verifier:
    """Checks credentials against trusted roots."""

    def __init__(self, roots, clock_):
        self._roots, self._clock = roots, clock_

    def structs(self, credentials):
        """Returns the texts of the credentials that Emulab looks at; it ignores other kinds."""
        if not isinstance(credentials, list):
            raise answers.malformed("Credentials should be a array not a singleton")
        return [
            entry["geni_value"]
            for entry in credentials
            if isinstance(entry, dict)
            and entry.get("geni_type") == "geni_sfa"
            and str(entry.get("geni_version")) in ("2", "3")
            and "geni_value" in entry
        ]

    def check(self, credentials, user, privileges=()):
        """Checks all, and returns the first.

        Args:
            credentials: Texts.
            user: Name in the client's certificate.
            privileges: One of these must be among its rights.

        Raises:
            Refusal: One is not good.
        """
        if not credentials:
            raise answers.malformed("You did not supply any credentials!")
        first, *_ = [self._check(text, user) for text in credentials]
        if privileges and not first.allows(*privileges):
            raise answers.Refusal(answers.FORBIDDEN, "Insufficient privilege")
        return first

    def _check(self, text, user):
        if not isinstance(text, str):
            raise answers.malformed("credential is not a string")
        found, signer = self._signed(text)
        expires = _time(found)
        if expires < self._clock.now():
            raise answers.malformed(f"invalid credential (expired at {clock.stamp(expires)})")
        owner, target = _text(found, "owner_urn"), _text(found, "target_urn")
        if not owner or not target:
            raise answers.malformed("Malformed credentials; missing URNs")
        if owner != user:
            raise answers.Refusal(answers.FORBIDDEN, "This is not your credential")
        if not pki.is_issued_by(signer, self._roots):
            raise answers.Refusal(
                answers.FORBIDDEN, "Cannot find root certificate for credential signer"
            )
        names = frozenset(e.text or "" for e in found.findall("privileges/privilege/name"))
        return Credential(owner, target, expires, names)

    def _signed(self, text):
        try:
            root = xml.parse(text)
            found = root.findall("credential")
            signatures = root.findall(f"signatures/{{{signature.DSIG}}}Signature")
            # A second one of either would let somebody sign one and show another.
            if root.tag != "signed-credential" or len(found) != 1 or len(signatures) != 1:
                raise answers.malformed("Internal error creating credential object")
            return found[0], signature.verify(found[0], signatures[0])[0]
        except (xml.Unparsable, signature.BadSignature) as error:
            raise answers.malformed(f"Failed to verify credential: {error}") from None


def _text(element, tag):
    return (element.findtext(tag) or "").strip()


def _time(element):
    try:
        return clock.parse(_text(element, "expires"))
    except ValueError:
        raise answers.malformed("Invalid expires date in credential") from None
