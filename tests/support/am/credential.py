"""Credentials, geni_sfa version 3: issued, and known again by each byte.

A client hands them on as it got them: a text that is not one of those was changed. The order of
the checks is Emulab's: signature and expiry, owner, privilege.
"""

import secrets
from dataclasses import dataclass
from datetime import datetime
from xml.sax.saxutils import escape

from . import answers, clock


@dataclass(frozen=True)
class Credential:
    """What a credential says."""

    owner: str
    target: str
    expires: datetime


class Credentials:
    """All that were issued."""

    def __init__(self, clock_):
        self._clock, self._issued = clock_, {}

    def issue(self, owner, target, expires):
        """Returns a credential of a user (URN) for a slice, or for the user, as text."""
        text = (
            '<?xml version="1.0" encoding="UTF-8"?>\n<signed-credential><credential>\n '
            f"<type>privilege</type>\n <owner_urn>{escape(owner)}</owner_urn>\n "
            f"<target_urn>{escape(target)}</target_urn>\n <expires>{clock.stamp(expires)}</expires>"
            f"\n</credential><signatures>{secrets.token_hex(32)}</signatures></signed-credential>\n"
        )
        self._issued[text] = Credential(owner, target, expires)
        return text

    def check(self, credentials, user):
        """Checks all of the kind that Emulab looks at, and returns what the first says.

        Args:
            credentials: Structs.
            user: Name in the client's certificate.

        Raises:
            Refusal: One is not good.
        """
        if not isinstance(credentials, list):
            raise answers.malformed("Credentials should be a array not a singleton")
        texts = [
            entry["geni_value"]
            for entry in credentials
            if entry["geni_type"] == "geni_sfa" and str(entry["geni_version"]) in ("2", "3")
        ]
        if not texts:
            raise answers.malformed("You did not supply any credentials!")
        first, *_ = [self._check(text, user) for text in texts]
        return first

    def _check(self, text, user):
        found = self._issued.get(text)
        if found is None:
            raise answers.malformed("Failed to verify credential: it has been changed")
        if found.expires < self._clock.now():
            ended = clock.stamp(found.expires)
            raise answers.malformed(f"invalid credential (expired at {ended})")
        if found.owner != user:
            raise answers.Refusal(answers.FORBIDDEN, "This is not your credential")
        return found
