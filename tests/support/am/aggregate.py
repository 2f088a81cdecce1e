"""The Aggregate Manager API, version 3, as Emulab speaks it.

Deliberately absent: version 2 (only its GetVersion answers, which leads on to 3), images,
shared LANs, stitching, speaks-for.
"""

import base64
import zlib
from contextlib import nullcontext

from . import answers, clock, documents, request, urn

_ACTIONS = ("geni_start", "geni_restart")
_ANSWERS = {"emulab": answers.struct, "gcf": answers.gcf}


class Aggregate:
    """Methods take the caller and the call's arguments, and return a value."""

    name = "am"
    lock = nullcontext()  # the ledger has its own
    methods = {  # noqa: RUF012
        "GetVersion": 0,
        "ListResources": 2,
        "Describe": 3,
        "Allocate": 4,
        "Update": 5,
        "Provision": 3,
        "PerformOperationalAction": 4,
        "Renew": 4,
        "Delete": 3,
    }
    """Number of arguments that must be there."""

    def __init__(self, site, ledger, inventory, verifier, faults, url):
        self._site, self._ledger, self._inventory = site, ledger, inventory
        self._verifier, self._faults, self._url = verifier, faults, url
        self.answer = _ANSWERS[site.face]

    def get_version(self, caller, options=None):
        """Returns what the server speaks."""
        del options
        formats = [
            {
                "type": kind,
                "version": version,
                "schema": f"{request.RSPEC}/{{}}.xsd",
                "namespace": request.RSPEC,
                "extensions": [request.EMULAB],
            }
            for kind, version in (("ProtoGENI", "2"), ("GENI", "3"))
        ]
        return {
            "geni_api": int((caller.version or "2").partition(".")[0]),
            "urn": self._site.manager,
            "hrn": f"{self._site.authority.partition('.')[0]}.cm",
            "url": self._url,
            "interface": "aggregate",
            "code_tag": "test",
            "hostname": f"boss.{self._site.authority}",
            "geni_api_versions": {str(n): f"{self._url}/{n}.0" for n in (1, 2, 3)},
            "geni_request_rspec_versions": _with_schema(formats, "request"),
            "geni_ad_rspec_versions": _with_schema(formats, "ad"),
            "geni_single_allocation": "1" if self._site.is_emulab else 1,
            "geni_allocate": "geni_disjoint",
            "geni_credential_types": [
                {"geni_type": "geni_sfa", "geni_version": version} for version in ("2", "3")
            ],
        }

    def list_resources(self, caller, credentials, options):
        """Returns the advertisement."""
        wanted = options.get("geni_rspec_version")
        if not isinstance(wanted, dict) or {"type", "version"} - wanted.keys():
            raise answers.malformed("Missing arguments")
        if (str(wanted["type"]).lower(), str(wanted["version"])) not in (
            ("geni", "3"),
            ("protogeni", "2"),
        ):
            raise answers.Refusal(answers.BADARGS, f"Unsupported version: {wanted}")
        self._check(caller, credentials)
        with self._ledger.lock:
            self._ledger.sweep()
            text = documents.advertisement(
                self._site,
                self._inventory.machines,
                self._site.image_urns,
                bool(options.get("geni_available")),
                caller.fault.padding,
            )
        if options.get("geni_compressed"):
            return base64.b64encode(zlib.compress(text.encode())).decode()
        return text

    def describe(self, caller, urns, credentials, options):
        """Returns the manifest and the states."""
        del options
        credential = self._check(caller, credentials)
        slice_ = self._ledger.find(credential.target)
        if slice_ is None:
            raise answers.Refusal(answers.SEARCHFAILED, "No such slice here")
        with self._ledger.lock:
            if slice_.ticket is None and not slice_.slivers:
                empty = {"geni_rspec": documents.EMPTY_MANIFEST, "geni_urn": slice_.urn}
                return {**empty, "geni_slivers": []}
            self._only_slice(slice_, urns)
            return {
                "geni_rspec": self._manifest(slice_),
                "geni_urn": slice_.urn,
                "geni_slivers": self._states(slice_),
            }

    def allocate(self, caller, slice_urn, credentials, rspec, options):
        """Promises slivers."""
        if self._site.is_gcf and self._ledger.find(slice_urn):
            text = f"Slice already has resources: {slice_urn}"
            raise answers.Refusal(answers.ALREADYEXISTS, text)
        return self._update(caller, slice_urn, [], credentials, rspec, options)

    def update(self, caller, slice_urn, urns, credentials, rspec, options):
        """Promises slivers: besides what there is, or (the slice's URN in `urns`) instead."""
        if self._site.is_gcf:
            raise answers.Fault(answers.NO_SUCH_METHOD, 'method "Update" is not supported')
        return self._update(caller, slice_urn, urns, credentials, rspec, options)

    def _update(self, caller, slice_urn, urns, credentials, rspec, options):
        del options
        credential = self._check(caller, credentials)
        if urns not in ([], [slice_urn]):
            raise answers.Refusal(answers.REFUSED, "Must pass only slice URN")
        if credential.target != slice_urn:
            text = "Credential does not match the URN"
            raise answers.Refusal(answers.FORBIDDEN, text)
        wanted = request.read(rspec, self._site.manager)
        self._ledger.allocate(slice_urn, wanted, credential.expires, replace=bool(urns))
        found = self.describe(caller, [slice_urn], credentials, {})
        keys = ("geni_sliver_urn", "geni_expires", "geni_allocation_status")
        states = [{key: state[key] for key in keys} for state in found["geni_slivers"]]
        return {"geni_rspec": found["geni_rspec"], "geni_slivers": states}

    def provision(self, caller, urns, credentials, options):
        """Makes slivers of what was promised."""
        slice_ = self._slice(caller, credentials)
        self._only_slice(slice_, urns)
        self._ledger.provision(slice_, _keys(options.get("geni_users") or []))
        found = self.describe(caller, urns, credentials, {})
        return {"geni_rspec": found["geni_rspec"], "geni_slivers": found["geni_slivers"]}

    def perform_operational_action(self, caller, urns, credentials, action, options):
        """Starts and restarts; Emulab returns nothing of use."""
        del options
        slice_ = self._act(caller, urns, credentials, action)
        return 0 if self._site.is_emulab else self._states(slice_)

    def renew(self, caller, urns, credentials, expiration, options):
        """Moves the end."""
        if not urns:
            raise answers.malformed("Empty URN List")
        credential = self._check(caller, credentials)
        slice_ = self._ledger.find(credential.target)
        if slice_ is None:
            raise answers.Refusal(answers.BADARGS, "No such slice here")
        if credential.target != urns[0]:
            text = "Credential does not match the URN"
            raise answers.Refusal(answers.FORBIDDEN, text)
        try:
            until = clock.parse(expiration)
        except (TypeError, ValueError):
            raise answers.malformed("Could not parse expiration") from None
        alap = bool(options.get("geni_extend_alap"))
        self._ledger.renew(slice_, until, credential.expires, alap)
        return self.describe(caller, urns, credentials, {})["geni_slivers"]

    def delete(self, caller, urns, credentials, options):
        """Removes all of the slice; answers before it has happened."""
        if not urns:
            raise answers.malformed("Empty URN List")
        found = self.describe(caller, urns, credentials, {})
        credential = self._check(caller, credentials)
        slice_ = self._ledger.find(credential.target)
        if slice_ is None:
            raise answers.Refusal(answers.SEARCHFAILED, "No such slice here")
        self._ledger.delete(slice_, bool(options.get("blocking")))
        return [
            {
                "geni_sliver_urn": state["geni_sliver_urn"],
                "geni_allocation_status": "geni_unallocated",
                "geni_expires": state["geni_expires"],
                "geni_error": "",
            }
            for state in found["geni_slivers"]
        ]

    def _act(self, caller, urns, credentials, action):
        slice_ = self._slice(caller, credentials)
        if not urns:
            raise answers.malformed("Empty URN List")
        if action not in _ACTIONS:
            raise answers.Refusal(answers.REFUSED, "Invalid operational action")
        if not slice_.slivers:
            raise answers.Refusal(answers.BADARGS, "No slice or aggregate here")
        by_urn = {sliver.urn: sliver for sliver in slice_.slivers.values()}
        chosen = [*by_urn] if urns[0] == slice_.urn else urns
        if any(name not in by_urn for name in chosen):
            raise answers.Refusal(answers.SEARCHFAILED, "Nothing here by that name")
        self._ledger.perform(slice_, action, [by_urn[name] for name in chosen])
        return slice_

    def _check(self, caller, credentials):
        return self._verifier.check(credentials, caller.urn)

    def _slice(self, caller, credentials):
        slice_ = self._ledger.find(self._check(caller, credentials).target)
        if slice_ is None:
            text = "No slice here that matches the provided credentials"
            raise answers.Refusal(answers.REFUSED, text)
        return slice_

    def _only_slice(self, slice_, urns):
        if urns != [slice_.urn]:
            raise answers.Refusal(answers.REFUSED, "Must pass only slice URN")

    def _manifest(self, slice_):
        ticket = slice_.ticket
        return documents.manifest(
            self._site,
            ticket.request if ticket else slice_.request,
            ticket.slivers if ticket else slice_.slivers,
            slice_.expires,
            slice_.links,
            [] if ticket else [*slice_.users],
            self._faults.hidden,
        )

    def _states(self, slice_):
        given = [
            {
                "geni_sliver_urn": sliver.urn,
                "geni_client_id": sliver.request.client_id,
                "geni_expires": clock.stamp(slice_.expires),
                "geni_allocation_status": "geni_provisioned",
                "geni_operational_status": sliver.operational,
                "geni_error": sliver.error,
            }
            for sliver in slice_.slivers.values()
        ]
        given += self._links(slice_)
        # A sliver that is given and promised again is listed twice, as Emulab's code does.
        promised = [
            {
                "geni_sliver_urn": sliver.urn,
                "geni_expires": clock.stamp(slice_.ticket.until),
                "geni_allocation_status": "geni_allocated",
                "geni_operational_status": "geni_pending_allocation",
                "geni_error": "",
            }
            for sliver in (slice_.ticket.slivers.values() if slice_.ticket else ())
        ]
        return given + promised

    def _links(self, slice_):
        """Returns the links' states: on Emulab they are slivers too, ready once they are given."""
        if not (self._site.is_emulab and slice_.slivers):
            return []
        return [
            {
                "geni_sliver_urn": slice_.links[name],
                "geni_client_id": name,
                "geni_expires": clock.stamp(slice_.expires),
                "geni_allocation_status": "geni_provisioned",
                "geni_operational_status": "geni_ready",
                "geni_error": "",
            }
            for name in slice_.request.links
        ]


def _with_schema(formats, kind):
    return [{**entry, "schema": entry["schema"].format(kind)} for entry in formats]


def _keys(users):
    """Returns the keys by login name, which is the last part of the user's URN."""
    if not isinstance(users, list):
        raise answers.malformed("Malformed keys!")
    try:
        return {
            urn.parse(user["urn"]).name: [key.strip() for key in user["keys"]] for user in users
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        raise answers.malformed("Malformed keys!") from None
