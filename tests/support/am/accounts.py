"""Users, projects and slices as their authority knows them."""

import re
import threading
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from . import answers

_SLICE_NAME = re.compile(r"[a-zA-Z][-a-zA-Z0-9]{0,18}")


@dataclass
class RegisteredSlice:
    """A slice at its authority, which expires: there is no call that deletes one."""

    urn: str
    name: str
    project: str
    expires: datetime
    description: str = ""
    members: list[str] = field(default_factory=list)


class Accounts:
    """The authority's books; the methods raise Refusal."""

    def __init__(self, site, credentials, clock, limits):
        self.projects: dict[str, tuple[str, ...]] = {}  # by user
        self.slices: dict[str, RegisteredSlice] = {}
        self._site, self._credentials, self._clock, self._limits = site, credentials, clock, limits
        self.lock = threading.RLock()

    def slice(self, slice_urn):
        """Returns a slice that has not expired."""
        found = self.slices.get(slice_urn)
        if found is None or self.is_expired(found):
            raise answers.Refusal(answers.SEARCHFAILED, "No such slice")
        return found

    def is_expired(self, found):
        return found.expires <= self._clock.now()

    def register(self, user, name, project, expires=None, description=""):
        """Makes a slice; names are unique in all projects, and it ends after six hours alone."""
        if project not in self.projects[user]:
            raise answers.Refusal(answers.FORBIDDEN, f"No privilege for project {project}")
        if not _SLICE_NAME.fullmatch(name):
            raise answers.Refusal(answers.BADARGS, f"{name} is not a valid slice name")
        for other in self.slices.values():
            if other.name == name and not self.is_expired(other):
                text = f"An existing slice in project {other.project} already has the same name"
                same = other.project == project
                text = "URN already a registered slice" if same else text
                raise answers.Refusal(answers.ERROR, text)
        expires = expires or self._clock.now() + timedelta(seconds=self._limits.slice)
        self._check_end(expires)
        urn = self._site.slice(project, name)
        made = RegisteredSlice(urn, name, project, expires, description, [user])
        self.slices[urn] = made
        return made

    def renew(self, found, expires):
        """Moves the end of a slice, never back."""
        self._check_end(expires)
        if expires < found.expires:
            raise answers.Refusal(answers.ERROR, "Cannot shorten slice lifetime")
        found.expires = expires

    def user_credential(self, user):
        """Returns a user's own credential; it holds a day."""
        return self._credentials.issue(user, user, self._clock.now() + timedelta(days=1))

    def slice_credential(self, user, found):
        if user not in found.members:
            raise answers.Refusal(answers.FORBIDDEN, f"No privilege on slice {found.urn}")
        return self._credentials.issue(user, found.urn, found.expires)

    def _check_end(self, expires):
        now, limits = self._clock.now(), self._limits
        if expires < now + timedelta(seconds=limits.minimum):
            text = "such a short life for a slice? More time please."
            raise answers.Refusal(answers.ERROR, text)
        if expires > now + timedelta(seconds=limits.maximum):
            minutes = f"{limits.maximum // 60:.0f}"
            text = f"expiration is greater then the maximum number of minutes {minutes}"
            raise answers.Refusal(answers.ERROR, text)
