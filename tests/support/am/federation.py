"""The Common Federation API, version 2: slice authority and member authority."""

from . import answers, names

_CLOSED = ("SLICE_EXPIRATION", "SLICE_EXPIRED", "SLICE_DESCRIPTION")
"""What Emulab tells the members of a slice alone."""


class _Authority:
    answer = staticmethod(answers.plain)

    def __init__(self, site, accounts, verifier):
        self._site, self._accounts, self._verifier = site, accounts, verifier
        self.lock = accounts.lock


class SliceAuthority(_Authority):
    """Methods take the caller and the call's arguments, and return a value."""

    name = "geni-sa"
    methods = frozenset({"create", "lookup", "update", "get_credentials", "lookup_for_member"})

    def create(self, caller, kind, credentials, options):
        self._verifier.check(credentials, caller.urn)
        fields = options["fields"]
        project = names.parse(fields["SLICE_PROJECT_URN"])
        if project.authority != self._site.accounts:
            raise answers.Refusal(answers.BADARGS, "Authority mismatch")
        ends, labels = names.time(fields["SLICE_EXPIRATION"]), fields["SLICE_DESCRIPTION"]
        made = self._accounts.register(caller.urn, fields["SLICE_NAME"], project.name, ends, labels)
        return self._shown(made)

    def lookup(self, caller, kind, credentials, options):
        """Returns slices that have not expired; Emulab shows nothing of others' but their names."""
        self._verifier.check(credentials, caller.urn)
        match, shown = {"SLICE_EXPIRED": False, **options["match"]}, {}
        for entry in self._accounts.slices.values():
            fields = self._shown(entry)
            if all(fields[key] == value for key, value in match.items()):
                is_closed = not self._site.is_gcf and caller.urn not in entry.members
                hidden = _CLOSED if is_closed else ()
                wanted = [key for key in options["filter"] if key not in hidden]
                shown[entry.urn] = {key: fields[key] for key in wanted}
        return shown

    def update(self, caller, kind, slice_urn, credentials, options):
        """Changes the end of a slice."""
        if self._verifier.check(credentials, caller.urn).target != slice_urn:
            raise answers.Refusal(answers.FORBIDDEN, "Credential does not match the URN")
        ends = names.time(options["fields"]["SLICE_EXPIRATION"])
        self._accounts.renew(self._accounts.slice(slice_urn), ends)
        return 0

    def get_credentials(self, caller, slice_urn, credentials, options):
        self._verifier.check(credentials, caller.urn)
        return self._accounts.slice_credential(caller.urn, self._accounts.slice(slice_urn))

    def lookup_for_member(self, caller, kind, member, credentials, options):
        self._verifier.check(credentials, caller.urn)
        projects = self._accounts.projects[member]
        return [{"PROJECT_URN": self._site.project(name), "EXPIRED": False} for name in projects]

    def _shown(self, entry):
        return {
            "SLICE_URN": entry.urn,
            "SLICE_PROJECT_URN": self._site.project(entry.project),
            "SLICE_EXPIRATION": names.stamp(entry.expires),
            "SLICE_EXPIRED": self._accounts.is_expired(entry),
            "SLICE_DESCRIPTION": entry.description,
        }


class MemberAuthority(_Authority):
    """Gives callers their own credentials: a certificate is enough."""

    name = "geni-ma"
    methods = frozenset({"get_credentials"})

    def get_credentials(self, caller, member, credentials, options):
        if member != caller.urn:
            raise answers.Refusal(answers.FORBIDDEN, "Who are you?")
        return self._accounts.user_credential(caller.urn)
