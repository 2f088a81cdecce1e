"""The Aggregate Manager API, version 3, as Emulab and GCF speak it; only what gpubed calls."""

import base64
import zlib
from contextlib import nullcontext

from . import answers, documents, names, request


class Aggregate:
    """Methods take the caller and the call's arguments, and return a value."""

    name = "am"
    lock = nullcontext()  # the ledger has its own
    methods = frozenset(
        {"GetVersion", "ListResources", "Describe", "Allocate", "Update", "Provision", "Renew"}
        | {"PerformOperationalAction", "Delete"}
    )

    def __init__(self, site, ledger, inventory, verifier, faults, url):
        self._site, self._ledger, self._inventory = site, ledger, inventory
        self._verifier, self._faults, self._url = verifier, faults, url
        self.answer = answers.gcf if site.is_gcf else answers.struct

    def get_version(self, caller, options):
        versions = {str(n): f"{self._url}/{n}.0" for n in (1, 2, 3)}
        found = {"geni_api": 3, "urn": self._site.manager, "geni_api_versions": versions}
        # What Emulab's code says; GENI's reference aggregate says nothing of it.
        emulab = {"geni_single_allocation": "1", "geni_allocate": "geni_disjoint"}
        return found if self._site.is_gcf else found | emulab

    def list_resources(self, caller, credentials, options):
        """Returns the advertisement, compressed."""
        self._verifier.check(credentials, caller.urn)
        with self._ledger.lock:
            self._ledger.sweep()
            machines, padding = self._inventory.machines, caller.fault.padding
            text = documents.advertisement(self._site, machines, padding)
        return base64.b64encode(zlib.compress(text.encode())).decode()

    def describe(self, caller, urns, credentials, options):
        """Returns the manifest and the states."""
        slice_ = self._slice(caller, credentials, answers.SEARCHFAILED)
        with self._ledger.lock:
            if slice_.ticket is None and not slice_.slivers:
                return {"geni_rspec": documents.EMPTY_MANIFEST, "geni_slivers": []}
            if urns != [slice_.urn]:
                raise answers.Refusal(answers.REFUSED, "Must pass only slice URN")
            text = documents.manifest(self._site, slice_, self._faults.hidden)
            return {"geni_rspec": text, "geni_slivers": self._states(slice_)}

    def allocate(self, caller, slice_urn, credentials, rspec, options):
        """Promises slivers."""
        if self._site.is_gcf and self._ledger.find(slice_urn):
            text = f"Slice already has resources: {slice_urn}"
            raise answers.Refusal(answers.ALREADYEXISTS, text)
        return self._promise(caller, slice_urn, credentials, rspec)

    def update(self, caller, slice_urn, urns, credentials, rspec, options):
        """Promises slivers instead of what there is."""
        if self._site.is_gcf:
            raise answers.Fault(answers.NO_SUCH_METHOD, 'method "Update" is not supported')
        return self._promise(caller, slice_urn, credentials, rspec, replace=True)

    def _promise(self, caller, slice_urn, credentials, rspec, *, replace=False):
        credential = self._check(caller, credentials, slice_urn)
        wanted = request.read(rspec)
        self._ledger.allocate(slice_urn, wanted, credential.expires, replace=replace)
        found = self.describe(caller, [slice_urn], credentials, {})
        keys = ("geni_sliver_urn", "geni_expires", "geni_allocation_status")
        states = [{key: state[key] for key in keys} for state in found["geni_slivers"]]
        return {**found, "geni_slivers": states}

    def provision(self, caller, urns, credentials, options):
        """Makes slivers of what was promised."""
        slice_ = self._slice(caller, credentials)
        users = {names.parse(user["urn"]).name: user["keys"] for user in options["geni_users"]}
        self._ledger.provision(slice_, users)
        return self.describe(caller, urns, credentials, {})

    def perform_operational_action(self, caller, urns, credentials, action, options):
        """Starts and restarts; Emulab returns nothing of use."""
        slice_ = self._slice(caller, credentials)
        by_urn = {sliver.urn: sliver for sliver in slice_.slivers.values()}
        chosen = [*by_urn] if urns == [slice_.urn] else urns
        if not by_urn or any(name not in by_urn for name in chosen):
            raise answers.Refusal(answers.SEARCHFAILED, "Nothing here by that name")
        if action == "geni_update_users" and not self._site.is_gcf:
            users = {names.parse(user["urn"]).name: user["keys"] for user in options["geni_users"]}
            self._ledger.admit(slice_, users)
        else:
            self._ledger.perform(slice_, action, [by_urn[name] for name in chosen])
        return self._states(slice_) if self._site.is_gcf else 0

    def renew(self, caller, urns, credentials, expiration, options):
        """Moves the end."""
        credential = self._check(caller, credentials, urns[0])
        slice_ = self._slice(caller, credentials, answers.BADARGS)
        self._ledger.renew(slice_, names.time(expiration), credential.expires)
        return self.describe(caller, urns, credentials, {})["geni_slivers"]

    def delete(self, caller, urns, credentials, options):
        """Removes all of the slice; answers before it has happened."""
        found = self.describe(caller, urns, credentials, {})
        self._ledger.delete(self._slice(caller, credentials, answers.SEARCHFAILED))
        gone = {"geni_allocation_status": "geni_unallocated"}
        return [state | gone for state in found["geni_slivers"]]

    def _check(self, caller, credentials, target):
        credential = self._verifier.check(credentials, caller.urn)
        if credential.target != target:
            raise answers.Refusal(answers.FORBIDDEN, "Credential does not match the URN")
        return credential

    def _slice(self, caller, credentials, code=answers.REFUSED):
        slice_ = self._ledger.find(self._verifier.check(credentials, caller.urn).target)
        if slice_ is None:
            raise answers.Refusal(code, "No such slice here")
        return slice_

    def _states(self, slice_):
        given = [
            _state(s.urn, s.client_id, slice_.expires, "provisioned", s.operational, s.error)
            for s in slice_.slivers.values()
        ]
        if slice_.slivers and not self._site.is_gcf:
            # On Emulab, links are slivers too, ready once they are given.
            given += [
                _state(slice_.links[name], name, slice_.expires, "provisioned", "geni_ready")
                for name in slice_.request.links
            ]
        # A sliver that is given and promised again is listed twice, as Emulab's code does.
        promised = slice_.ticket.slivers.values() if slice_.ticket else ()
        return given + [
            _state(s.urn, "", slice_.ticket.until, "allocated", "geni_pending_allocation")
            for s in promised
        ]


def _state(urn, client_id, expires, allocation, operational, error=""):
    return {
        "geni_sliver_urn": urn,
        **({"geni_client_id": client_id} if client_id else {}),
        "geni_expires": names.stamp(expires),
        "geni_allocation_status": f"geni_{allocation}",
        "geni_operational_status": operational,
        "geni_error": error,
    }
