"""The Common Federation API, version 2: slice authority and member authority."""

from . import answers, clock, urn

_SLICE_FIELDS = (
    "SLICE_NAME",
    "SLICE_PROJECT_URN",
    "SLICE_EXPIRATION",
    "SLICE_DESCRIPTION",
)
_CLOSED = (
    "SLICE_UID",
    "SLICE_CREATION",
    "SLICE_EXPIRATION",
    "SLICE_EXPIRED",
    "SLICE_DESCRIPTION",
)
"""What Emulab tells the members of a slice alone."""
_SLIVER_FIELDS = tuple(
    f"SLIVER_INFO_{name}"
    for name in ("SLICE_URN", "URN", "AGGREGATE_URN", "CREATOR_URN", "EXPIRATION", "CREATION")
)


class _Authority:
    """What both have in common."""

    services: tuple[str, ...] = ()
    answer = staticmethod(answers.plain)

    def __init__(self, site, accounts, verifier, url):
        self._site, self._accounts, self._verifier, self._url = site, accounts, verifier, url
        self.lock = accounts.lock

    def get_version(self, caller):
        """Returns what the server speaks."""
        del caller
        kinds = (("geni_sfa", "3"), ("geni_abac", "1"))
        return {
            "VERSION": "2",
            "URN": urn.make(self._site.accounts, "authority", self.name.removeprefix("geni-")),
            "IMPLEMENTATION": {"code_version": "test"},
            "SERVICES": [*self.services],
            "CREDENTIAL_TYPES": [{"type": kind, "version": version} for kind, version in kinds],
            "ROLES": ["AUTHORITY", "ADMIN", "MEMBER"],
            "API_VERSIONS": {"2": self._url},
            "FIELDS": {},
        }

    def _check(self, caller, credentials):
        return self._verifier.check(self._verifier.structs(credentials), caller.urn)


class SliceAuthority(_Authority):
    """Methods take the caller and the call's arguments, and return a value."""

    name = "geni-sa"
    services = ("SLICE", "SLICE_MEMBER", "PROJECT", "PROJECT_MEMBER", "SLIVER_INFO")
    methods = {  # noqa: RUF012
        "get_version": 0,
        "create": 3,
        "lookup": 3,
        "update": 4,
        "delete": 4,
        "get_credentials": 3,
        "modify_membership": 4,
        "lookup_members": 4,
        "lookup_for_member": 4,
    }

    def create(self, caller, kind, credentials, options):
        """Registers a slice."""
        self._check(caller, credentials)
        if kind == "SLIVER_INFO":
            return self._accounts.note_sliver(_fields(options))
        _only(kind, "SLICE")
        fields = _fields(options, _SLICE_FIELDS)
        if "SLICE_PROJECT_URN" not in fields or "SLICE_NAME" not in fields:
            raise answers.malformed("SLICE_NAME and SLICE_PROJECT_URN are needed")
        project = _project(fields["SLICE_PROJECT_URN"], self._site.accounts)
        ends = fields.get("SLICE_EXPIRATION")
        made = self._accounts.register(
            caller.urn,
            fields["SLICE_NAME"],
            project,
            _time(ends) if ends else None,
            fields.get("SLICE_DESCRIPTION", ""),
        )
        return self._shown(made)

    def lookup(self, caller, kind, credentials, options):
        """Returns slices by URN; Emulab tells of those of others nothing but their names."""
        self._check(caller, credentials)
        if kind == "PROJECT":
            if self._site.is_emulab:
                raise answers.Refusal(answers.NOT_IMPLEMENTED, "Lookup Projects is not implemented")
            return _matching(self._projects(caller), options.get("match", {}))
        if kind == "SLIVER_INFO":
            return _matching(self._accounts.sliver_notes, options.get("match", {}))
        _only(kind, "SLICE")
        match, wanted = options.get("match", {}), options.get("filter")
        shown = {entry.urn: self._shown(entry) for entry in self._accounts.slices.values()}
        hidden = {
            entry.urn: _CLOSED
            for entry in self._accounts.slices.values()
            if self._site.is_emulab and caller.urn not in entry.members
        }
        return {
            name: {
                key: value
                for key, value in entry.items()
                if (not wanted or key in wanted) and key not in hidden.get(name, ())
            }
            for name, entry in _matching(shown, {"SLICE_EXPIRED": False, **match}).items()
        }

    def update(self, caller, kind, slice_urn, credentials, options):
        """Changes the end or the description of a slice, or a note about a sliver."""
        if kind == "SLIVER_INFO":
            self._check(caller, credentials)
            self._accounts.note_sliver({**_fields(options), "SLIVER_INFO_URN": slice_urn})
            return 0
        _only(kind, "SLICE")
        found = self._of(caller, credentials, slice_urn)
        fields = _fields(options, ("SLICE_EXPIRATION", "SLICE_DESCRIPTION"))
        if "SLICE_EXPIRATION" in fields:
            self._accounts.renew(found, _time(fields["SLICE_EXPIRATION"]))
        found.description = fields.get("SLICE_DESCRIPTION", found.description)
        return 0

    def delete(self, caller, kind, name, credentials, options):
        """Forgets a note about a sliver; slices cannot be deleted."""
        del options
        _only(kind, "SLIVER_INFO")
        self._check(caller, credentials)
        self._accounts.sliver_notes.pop(name, None)
        return 0

    def get_credentials(self, caller, slice_urn, credentials, options):
        """Returns the caller's credential for a slice."""
        del options
        self._check(caller, credentials)
        found = self._accounts.slice(slice_urn)
        return _structs(self._accounts.slice_credential(caller.urn, found))

    def modify_membership(self, caller, kind, slice_urn, credentials, options):
        """Adds members."""
        _only(kind, "SLICE")
        found = self._of(caller, credentials, slice_urn)
        if options.get("members_to_remove") or options.get("members_to_change"):
            raise answers.Refusal(answers.NOT_IMPLEMENTED, "Not implemented")
        for entry in options.get("members_to_add", []):
            found.members.append(self._accounts.user(entry["SLICE_MEMBER"]).urn)
        return 0

    def lookup_members(self, caller, kind, name, credentials, options):
        """Returns the members of a slice or a project."""
        del options
        self._check(caller, credentials)
        if kind == "PROJECT":
            project = _project(name, self._site.accounts)
            members = [u.urn for u in self._accounts.users.values() if project in u.projects]
        else:
            _only(kind, "SLICE")
            members = self._accounts.slice(name).members
        return [{f"{kind}_MEMBER": who, f"{kind}_ROLE": "MEMBER"} for who in members]

    def lookup_for_member(self, caller, kind, member, credentials, options):
        """Returns the slices or projects of a member."""
        del options
        self._check(caller, credentials)
        if kind == "PROJECT":
            if member != caller.urn:
                text = "You are forbidden to request project membership for other members"
                raise answers.Refusal(answers.FORBIDDEN, text)
            projects = self._accounts.user(member).projects
            role = {"PROJECT_ROLE": "MEMBER", "EXPIRED": False}
            return [{"PROJECT_URN": self._site.project(name), **role} for name in projects]
        _only(kind, "SLICE")
        return [
            {"SLICE_URN": s.urn, "SLICE_ROLE": "MEMBER", "EXPIRED": self._accounts.is_expired(s)}
            for s in self._accounts.slices.values()
            if member in s.members
        ]

    def _of(self, caller, credentials, slice_urn):
        if self._check(caller, credentials).target != slice_urn:
            text = "Credential does not match the URN"
            raise answers.Refusal(answers.FORBIDDEN, text)
        return self._accounts.slice(slice_urn)

    def _projects(self, caller):
        names = self._accounts.user(caller.urn).projects
        return {
            self._site.project(name): {
                "PROJECT_URN": self._site.project(name),
                "PROJECT_NAME": name,
                "PROJECT_EXPIRED": False,
            }
            for name in names
        }

    def _shown(self, entry):
        return {
            "SLICE_URN": entry.urn,
            "SLICE_NAME": entry.name,
            "SLICE_PROJECT_URN": self._site.project(entry.project),
            "SLICE_UID": entry.uid,
            "SLICE_CREATION": clock.stamp(entry.created),
            "SLICE_EXPIRATION": clock.stamp(entry.expires),
            "SLICE_EXPIRED": self._accounts.is_expired(entry),
            "SLICE_DESCRIPTION": entry.description,
            "_EMULAB_SLICE_HRN": f"{self._site.accounts}.{entry.project}.{entry.name}",
        }


class MemberAuthority(_Authority):
    """Methods take the caller and the call's arguments, and return a value."""

    name = "geni-ma"
    services = ("MEMBER", "KEY")
    methods = {"get_version": 0, "get_credentials": 3, "lookup": 3}  # noqa: RUF012

    def get_credentials(self, caller, member, credentials, options):
        """Returns the caller's own credential: her certificate is enough."""
        del credentials, options
        if member != caller.urn:
            raise answers.Refusal(answers.FORBIDDEN, "Who are you?")
        return _structs(self._accounts.user_credential(caller.urn))

    def lookup(self, caller, kind, credentials, options):
        """Returns members by URN, or keys by number."""
        self._check(caller, credentials)
        match = options.get("match", {})
        if kind == "KEY":
            return self._keys(self._accounts.user(match.get("KEY_MEMBER")))
        _only(kind, "MEMBER")
        shown = {user.urn: _member(user) for user in self._accounts.users.values()}
        return _matching(shown, match)

    def _keys(self, user):
        return {
            str(number): {
                "KEY_MEMBER": user.urn,
                "KEY_ID": str(number),
                "KEY_TYPE": "openssh",
                "KEY_DESCRIPTION": "",
                "KEY_PUBLIC": key,
            }
            for number, key in enumerate(user.keys, 1)
        }


def _member(user):
    return {
        "MEMBER_URN": user.urn,
        "MEMBER_UID": user.uid,
        "MEMBER_USERNAME": user.name,
        "MEMBER_FIRSTNAME": user.name.title(),
        "MEMBER_LASTNAME": "Example",
        "MEMBER_EMAIL": user.email,
    }


def _structs(text):
    return [{"geni_type": "geni_sfa", "geni_version": "3", "geni_value": text}]


def _only(kind, known):
    if kind != known:
        raise answers.Refusal(answers.NOT_IMPLEMENTED, f"Not implemented for {kind}")


def _matching(entries, match):
    """Returns the entries with all the values; of a list of values one is enough."""
    return {
        name: entry
        for name, entry in entries.items()
        if all(
            entry.get(key) in (value if isinstance(value, list) else [value])
            for key, value in match.items()
        )
    }


def _fields(options, allowed=_SLIVER_FIELDS):
    fields = options.get("fields")
    if not isinstance(fields, dict):
        raise answers.malformed("no fields")
    if wrong := sorted(fields.keys() - set(allowed)):
        raise answers.malformed(f"Field not allowed: {wrong[0]}")
    return fields


def _project(name, authority):
    try:
        found = urn.parse(name)
    except ValueError:
        raise answers.malformed("bad project URN") from None
    if found.kind != "project" or found.authority != authority:
        raise answers.Refusal(answers.BADARGS, "Authority mismatch")
    return found.name


def _time(text):
    try:
        return clock.parse(text)
    except (TypeError, ValueError):
        raise answers.malformed("Could not parse expiration") from None
