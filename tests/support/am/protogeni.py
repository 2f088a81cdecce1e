"""ProtoGENI's slice authority (`…/sa`), older than the federation API: one struct per call."""

from . import answers, clock


class SliceAuthority:
    """Methods take the caller and the call's one argument, and return a value."""

    name = "sa"
    answer = staticmethod(answers.plain)
    methods = {  # noqa: RUF012
        "GetVersion": 0,
        "GetCredential": 1,
        "Resolve": 1,
        "Register": 1,
        "RenewSlice": 1,
        "GetKeys": 1,
    }

    def __init__(self, site, accounts, verifier, project):
        self._site, self._accounts, self._verifier = site, accounts, verifier
        self.lock, self._project = accounts.lock, project
        """Where slices go whose URL names no project."""

    def get_version(self, caller, options=None):
        """Returns the version of the interface."""
        del caller, options
        return {"api": 1.2, "code_tag": "test", "interface": "registry"}

    def get_credential(self, caller, options):
        """Returns the caller's own credential, or with `urn` that for a slice."""
        if "credential" not in options:
            return self._accounts.user_credential(caller.urn)
        self._check(caller, options)
        found = self._accounts.slice(options.get("urn"))
        return self._accounts.slice_credential(caller.urn, found)

    def resolve(self, caller, options):
        """Returns what there is to know about a slice or a user."""
        self._check(caller, options)
        if str(options.get("type")).lower() == "user":
            user = self._accounts.user(options.get("urn"))
            return {"urn": user.urn, "uid": user.name, "uuid": user.uid, "email": user.email}
        found = self._accounts.slice(options.get("urn") or self._urn(caller, options.get("hrn")))
        return {
            "urn": found.urn,
            "uuid": found.uid,
            "creator_urn": found.creator,
            "expires": clock.stamp(found.expires),
        }

    def register(self, caller, options):
        """Makes a slice, and returns its credential."""
        self._check(caller, options)
        name = str(options.get("hrn", ""))
        if "." in name or not name:
            raise answers.Refusal(answers.BADARGS, "hrn: Single token only please")
        expires = _time(options.get("expiration"))
        made = self._accounts.register(caller.urn, name, caller.project or self._project, expires)
        return self._accounts.slice_credential(caller.urn, made)

    def renew_slice(self, caller, options):
        """Moves the end of a slice, and returns a new credential."""
        found = self._accounts.slice(self._check(caller, options).target)
        self._accounts.renew(found, _time(options.get("expiration")) or found.expires)
        return self._accounts.slice_credential(caller.urn, found)

    def get_keys(self, caller, options):
        """Returns the caller's registered keys."""
        self._check(caller, options)
        return [{"type": "ssh", "key": key} for key in self._accounts.user(caller.urn).keys]

    def _check(self, caller, options):
        if "credential" not in options:
            raise answers.malformed("Missing arguments")
        return self._verifier.check([options["credential"]], caller.urn)

    def _urn(self, caller, name):
        project = caller.project or self._project
        return self._site.slice(project, str(name))


def _time(text):
    try:
        return clock.parse(text) if text else None
    except (TypeError, ValueError):
        raise answers.malformed("Could not parse expiration") from None
