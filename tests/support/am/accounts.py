"""Users, projects and slices as their authority knows them."""

import re
import threading
import uuid
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from . import answers, pki

_SLICE_NAME = re.compile(r"[a-zA-Z][-a-zA-Z0-9]{0,18}")


@dataclass(frozen=True)
class User:
    """A user with her certificate, projects and registered keys."""

    name: str
    urn: str
    email: str
    identity: pki.Identity
    projects: tuple[str, ...]
    keys: tuple[str, ...]
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))


@dataclass
class RegisteredSlice:
    """A slice at its authority; nobody can delete one, it expires."""

    urn: str
    name: str
    project: str
    creator: str
    created: datetime
    expires: datetime
    description: str = ""
    members: list[str] = field(default_factory=list)
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))


class Accounts:
    """The authority's books; the methods raise Refusal."""

    def __init__(self, site, credentials, clock, limits):
        self.users: dict[str, User] = {}
        self.slices: dict[str, RegisteredSlice] = {}
        self._site, self._credentials, self._clock, self._limits = site, credentials, clock, limits
        self.lock = threading.RLock()

    def user(self, user_urn):
        """Returns a user."""
        if user_urn not in self.users:
            raise answers.Refusal(answers.SEARCHFAILED, "No such user here")
        return self.users[user_urn]

    def slice(self, slice_urn):
        """Returns a slice that has not expired."""
        found = self.slices.get(slice_urn)
        if found is None or found.expires <= self._clock.now():
            raise answers.Refusal(answers.SEARCHFAILED, "No such slice")
        return found

    def is_expired(self, found):
        """Says whether a slice has expired."""
        return found.expires <= self._clock.now()

    def register(self, user_urn, name, project, expires=None, description=""):
        """Makes a slice.

        Args:
            user_urn: Its creator.
            name: Unique among all slices that have not expired, across projects.
            project: Name of one of the user's.
            expires: When; six hours from now if None.
            description: For people.
        """
        if project not in self.user(user_urn).projects:
            raise answers.Refusal(answers.FORBIDDEN, f"No privilege for project {project}")
        if not isinstance(name, str) or not _SLICE_NAME.fullmatch(name):
            raise answers.Refusal(answers.BADARGS, f"{name} is not a valid slice name")
        for other in self.slices.values():
            if other.name == name and not self.is_expired(other):
                if other.project == project:
                    raise answers.Refusal(answers.ERROR, "URN already a registered slice")
                text = f"An existing slice in project {other.project} already has the same name"
                raise answers.Refusal(answers.ERROR, text)
        now = self._clock.now()
        expires = expires or now + timedelta(seconds=self._limits.slice)
        self._check_end(expires)
        slice_urn = self._site.slice(project, name)
        self.slices[slice_urn] = RegisteredSlice(
            slice_urn, name, project, user_urn, now, expires, description, [user_urn]
        )
        return self.slices[slice_urn]

    def renew(self, found, expires):
        """Moves the end of a slice, never back."""
        self._check_end(expires)
        if expires < found.expires:
            raise answers.Refusal(answers.ERROR, "Cannot shorten slice lifetime")
        found.expires = expires

    def user_credential(self, user_urn):
        """Returns a user's credential for herself; it holds a day."""
        me = self.user(user_urn).urn
        return self._credentials.issue(me, me, self._clock.now() + timedelta(days=1))

    def slice_credential(self, user_urn, found):
        """Returns a member's credential for a slice; it ends with the slice."""
        if user_urn not in found.members:
            text = f"No privilege on slice {found.urn}"
            raise answers.Refusal(answers.FORBIDDEN, text)
        return self._credentials.issue(user_urn, found.urn, found.expires)

    def _check_end(self, expires):
        now, limits = self._clock.now(), self._limits
        if expires < now:
            raise answers.Refusal(answers.ERROR, "Expiration is in the past")
        if expires < now + timedelta(seconds=limits.minimum):
            text = "such a short life for a slice? More time please."
            raise answers.Refusal(answers.ERROR, text)
        if expires > now + timedelta(seconds=limits.maximum):
            minutes = f"{limits.maximum // 60:.0f}"
            text = f"expiration is greater then the maximum number of minutes {minutes}"
            raise answers.Refusal(answers.ERROR, text)
