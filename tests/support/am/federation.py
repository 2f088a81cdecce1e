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


class _Authority:
    """What both have in common."""

    answer = staticmethod(answers.plain)

    def __init__(self, site, accounts, verifier):
        self._site, self._accounts, self._verifier = site, accounts, verifier
        self.lock = accounts.lock

    def _check(self, caller, credentials):
        return self._verifier.check(credentials, caller.urn)


class SliceAuthority(_Authority):
    """Methods take the caller and the call's arguments, and return a value."""

    name = "geni-sa"
    methods = {  # noqa: RUF012
        "create": 3,
        "lookup": 3,
        "update": 4,
        "get_credentials": 3,
        "modify_membership": 4,
        "lookup_for_member": 4,
    }

    def create(self, caller, kind, credentials, options):
        """Registers a slice."""
        self._check(caller, credentials)
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
        """Changes the end or the description of a slice."""
        _only(kind, "SLICE")
        found = self._of(caller, credentials, slice_urn)
        fields = _fields(options, ("SLICE_EXPIRATION", "SLICE_DESCRIPTION"))
        if "SLICE_EXPIRATION" in fields:
            self._accounts.renew(found, _time(fields["SLICE_EXPIRATION"]))
        found.description = fields.get("SLICE_DESCRIPTION", found.description)
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

    def lookup_for_member(self, caller, kind, member, credentials, options):
        """Returns the projects of a member."""
        del options
        self._check(caller, credentials)
        _only(kind, "PROJECT")
        if member != caller.urn:
            text = "You are forbidden to request project membership for other members"
            raise answers.Refusal(answers.FORBIDDEN, text)
        projects = self._accounts.user(member).projects
        role = {"PROJECT_ROLE": "MEMBER", "EXPIRED": False}
        return [{"PROJECT_URN": self._site.project(name), **role} for name in projects]

    def _of(self, caller, credentials, slice_urn):
        if self._check(caller, credentials).target != slice_urn:
            text = "Credential does not match the URN"
            raise answers.Refusal(answers.FORBIDDEN, text)
        return self._accounts.slice(slice_urn)

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
    methods = {"get_credentials": 3}  # noqa: RUF012

    def get_credentials(self, caller, member, credentials, options):
        """Returns the caller's own credential: her certificate is enough."""
        del credentials, options
        if member != caller.urn:
            raise answers.Refusal(answers.FORBIDDEN, "Who are you?")
        return _structs(self._accounts.user_credential(caller.urn))


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


def _fields(options, allowed):
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
