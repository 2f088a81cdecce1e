"""Names, times and credentials of a site, as GENI writes them."""

import secrets
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple

from . import answers

_PREFIX = "urn:publicid:IDN+"


class Urn(NamedTuple):
    """The three parts of a name; an authority may have sub-authorities behind colons."""

    authority: str
    kind: str
    name: str

    def __str__(self):
        return f"{_PREFIX}{self.authority}+{self.kind}+{self.name}"


def make(authority, kind, name):
    return str(Urn(authority, kind, name))


def parse(text):
    """Returns the parts of a URN, `urn:publicid:IDN+<authority>+<type>+<name>`."""
    parts = text.removeprefix(_PREFIX).split("+") if isinstance(text, str) else []
    if len(parts) != 3 or not text.startswith(_PREFIX) or not all(parts):
        raise answers.malformed(f"not a GENI URN: {text!r}")
    return Urn(*parts)


@dataclass(frozen=True)
class Site:
    """What the site is called; its accounts are another authority's, as at Fed4FIRE."""

    authority: str = "wall2.ilabt.example"
    accounts: str = "ilabt.example"
    images: tuple[str, ...] = ("emulab-ops:DEBIAN12-64-STD", "emulab-ops:UBUNTU20-64-STD")
    face: Literal["emulab", "gcf"] = "emulab"
    keeps_images: str = ""  # the authority of the disk images, if another one

    @classmethod
    def gcf(cls):
        """Returns a site as GENI's reference software makes one, with sub-authorities."""
        return cls(authority="geni:gpo:gcf", accounts="geni:gpo:gcf", face="gcf")

    @classmethod
    def cloudlab(cls):
        """Returns CloudLab's cluster in Utah, whose accounts and images are Emulab's."""
        images = tuple(f"emulab-ops:UBUNTU{release}-64-STD" for release in ("22", "24"))
        return cls("utah.cloudlab.us", "emulab.net", images, keeps_images="emulab.net")

    @property
    def is_gcf(self):
        return self.face == "gcf"

    @property
    def manager(self):
        return make(self.authority, "authority", "cm")

    @property
    def image_urns(self):
        return [make(self.keeps_images or self.authority, "image", name) for name in self.images]

    def user(self, name):
        return make(self.accounts, "user", name)

    def slice(self, project, name):
        return make(self.accounts if self.is_gcf else f"{self.accounts}:{project}", "slice", name)

    def project(self, name):
        return make(self.accounts, "project", name)


class Clock:
    """The server's time, which a test can push on."""

    def __init__(self):
        self._jumped, self._lock = timedelta(), threading.Lock()

    def now(self):
        with self._lock:
            return datetime.now(UTC) + self._jumped

    def advance(self, seconds):
        with self._lock:
            self._jumped += timedelta(seconds=seconds)


def stamp(when):
    """Formats a time as Emulab does: RFC 3339, UTC, whole seconds."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def time(text):
    """Reads an RFC 3339 time; no zone means UTC."""
    try:
        when = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise answers.malformed("Could not parse expiration") from None
    return when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)


@dataclass(frozen=True)
class Credential:
    """What a credential says."""

    owner: str
    target: str
    expires: datetime


class Credentials:
    """All credentials that were issued: a text that is not one of them was changed."""

    def __init__(self, clock):
        self._clock, self._issued = clock, {}

    def issue(self, owner, target, expires):
        """Returns a user's credential for a slice, or for the user, as structs."""
        text = f"<signed-credential><!-- {secrets.token_hex(32)} --></signed-credential>\n"
        self._issued[text] = Credential(owner, target, expires)
        return [{"geni_type": "geni_sfa", "geni_version": "3", "geni_value": text}]

    def check(self, credentials, user):
        """Returns what the first says; the order of the checks is Emulab's."""
        for entry in credentials:
            found = self._issued.get(entry["geni_value"])
            if found is None:
                raise answers.malformed("Failed to verify credential: it has been changed")
            if found.expires < self._clock.now():
                ended = stamp(found.expires)
                raise answers.malformed(f"invalid credential (expired at {ended})")
            if found.owner != user:
                raise answers.Refusal(answers.FORBIDDEN, "This is not your credential")
        if not credentials:
            raise answers.malformed("You did not supply any credentials!")
        return self._issued[credentials[0]["geni_value"]]
