"""The aggregate's books: slices, tickets and slivers, and what may follow what.

As on Emulab: a slice has at most one ticket (what Allocate promised, for ten minutes)
and one aggregate (what Provision made of it). All slivers of a slice expire together.
"""

import itertools
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta

from . import answers, names
from .nodes import NodeBroken
from .slices import Slice, Sliver, Ticket

_STAGES = {"geni_start": ("new", "stopped"), "geni_restart": ("started", "started")}


class Ledger:
    """All slices; the methods raise Refusal."""

    def __init__(self, site, inventory, nodes, clock, limits, faults):
        self.slices: dict[str, Slice] = {}
        self._site, self._inventory, self._nodes = site, inventory, nodes
        self._clock, self._limits, self._faults = clock, limits, faults
        self._reap = timedelta(seconds=limits.reap)
        self._numbers = itertools.count(100001)
        self.lock = threading.RLock()
        self._pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix="am-node")

    def close(self):
        """Waits for what is going on."""
        self._pool.shutdown(wait=True)

    def find(self, slice_urn):
        """Returns a slice, or None."""
        self.sweep()
        return self.slices.get(slice_urn)

    @contextmanager
    def _held(self, slice_):
        """Holds a slice for one call; refuses while another one has it, or nodes start."""
        with self.lock:
            if slice_.busy or slice_.starting:
                raise answers.busy()
            slice_.busy = True
        try:
            yield
        finally:
            with self.lock:
                slice_.busy = False

    def sweep(self):
        """Takes back what has expired: promises that nobody redeemed, and slices."""
        with self.lock:
            now = self._clock.now()
            for slice_ in [*self.slices.values()]:
                if slice_.busy or slice_.starting:
                    continue
                if slice_.expires <= now:
                    self._begin_removal(slice_)
                elif slice_.ticket and slice_.ticket.until + self._reap <= now:
                    for sliver in slice_.ticket.slivers.values():
                        if not sliver.reach:
                            self._inventory.release(sliver.machine)
                    slice_.ticket = None
                    if not slice_.slivers:
                        del self.slices[slice_.urn]

    def allocate(self, slice_urn, request, expires, *, replace=False):
        """Promises slivers for a request; with `replace` instead of what there is."""
        with self.lock:
            end = min(expires, self._after(self._limits.sliver))
            slice_ = self.find(slice_urn) or Slice(slice_urn, end)
            with self._held(slice_):
                if slice_.all_slivers() and not replace:
                    text = "New rspec is not disjoint from sliver"
                    raise answers.Refusal(answers.ERROR, text)
                for image in {node.image for node in request.nodes.values()} - {None}:
                    if image not in self._site.image_urns:
                        raise answers.Refusal(answers.BADARGS, f"Unknown image URN: {image}")
                self._promise(slice_, request)
                self.slices[slice_urn] = slice_

    def provision(self, slice_, users):
        """Redeems the ticket; `users` has keys by login name."""
        with self._held(slice_):
            ticket = slice_.ticket
            if ticket is None:
                raise answers.Refusal(answers.REFUSED, "No allocated slivers exist")
            if ticket.until <= self._clock.now():
                raise answers.Refusal(answers.EXPIRED, "Ticket has expired")
            slice_.users = users
            dropped = [s for name, s in slice_.slivers.items() if name not in ticket.slivers]
            self._remove(slice_, dropped)
            with self.lock:
                for sliver in ticket.slivers.values():
                    if not sliver.reach:
                        sliver.reach = self._nodes.reach(sliver)
                        sliver.operational = "geni_notready"
                slice_.slivers, slice_.request = dict(ticket.slivers), ticket.request
                slice_.ticket = None

    def perform(self, slice_, action, slivers):
        """Starts or restarts slivers in the background.

        A whole slice may be mixed, and the action is for those that it fits; of slivers
        that are named each must be as the action wants it.
        """
        if action not in _STAGES:
            raise answers.Refusal(answers.REFUSED, "Invalid operational action")
        fitting, text = _STAGES[action]
        with self._held(slice_):
            chosen = [s for s in slivers if s.stage == fitting]
            whole = len(slivers) == len(slice_.slivers)
            if not chosen or (len(chosen) < len(slivers) and not whole):
                raise answers.Refusal(answers.REFUSED, f"Sliver is not {text} (yet)")
            with self.lock:
                for sliver in chosen:
                    sliver.operational, sliver.stage = "geni_configuring", "started"
                slice_.starting += len(chosen)
            for sliver in chosen:
                self._pool.submit(self._run, slice_, action, sliver)

    def admit(self, slice_, users):
        """Replaces the users' keys on the nodes that run, in the background."""
        with self._held(slice_), self.lock:
            slice_.users = users
            slice_.starting += len(slice_.slivers)
            for sliver in slice_.slivers.values():
                sliver.operational = "geni_updating_users"
                self._pool.submit(self._run, slice_, "geni_update_users", sliver)

    def renew(self, slice_, until, credential_ends):
        """Moves the end of a slice here, at most to the slice's own; cuts what is too long."""
        with self.lock:
            if slice_.busy:
                raise answers.busy()
            now = self._clock.now()
            if until < now + timedelta(seconds=self._limits.minimum):
                raise answers.Refusal(answers.REFUSED, "such a short life for a sliver?")
            if until > credential_ends:
                text = "expiration is greater then slice expiration"
                raise answers.Refusal(answers.REFUSED, text)
            slice_.expires = min(until, now + timedelta(seconds=self._limits.maximum))

    def delete(self, slice_):
        """Removes a slice in the background."""
        with self.lock:
            with self._held(slice_):
                pass
            self._begin_removal(slice_)

    def _after(self, seconds):
        return self._clock.now() + timedelta(seconds=seconds)

    def _promise(self, slice_, request):
        known = {s.client_id: s for s in slice_.all_slivers()}
        slivers = {name: known[name] for name in request.nodes if name in known}
        new = [node for name, node in request.nodes.items() if name not in known]
        machines = self._inventory.map(new, slice_.urn)
        for node in new:
            macs = {n: f"02:42:{a.ip.packed.hex(':')}" for n, a in node.interfaces.items()}
            slivers[node.client_id] = Sliver(self._urn(), node, machines[node.client_id], macs)
        # What an older ticket promised and this one does not goes back at once.
        for sliver in slice_.all_slivers():
            if sliver.client_id not in slivers and not sliver.reach:
                self._inventory.release(sliver.machine)
        for name in request.links:
            slice_.links.setdefault(name, self._urn())
        slice_.ticket = Ticket(request, slivers, self._after(self._limits.ticket))

    def _urn(self):
        return names.make(self._site.authority, "sliver", str(next(self._numbers)))

    def _run(self, slice_, action, sliver):
        state, error = "geni_failed", "internal error"
        fault = self._faults.take_node(sliver.client_id)
        try:
            time.sleep(fault.slow)
            if fault.fails:
                raise NodeBroken(fault.fails)
            start = self._nodes.restart if action == "geni_restart" else self._nodes.start
            start(slice_, sliver)
            state, error = "geni_ready", ""
        except NodeBroken as broken:
            error = str(broken)
        except Exception:
            traceback.print_exc()
        finally:
            with self.lock:
                sliver.operational, sliver.error = state, error
                slice_.starting -= 1

    def _begin_removal(self, slice_):
        slice_.busy = True
        self._pool.submit(self._finish_removal, slice_)

    def _finish_removal(self, slice_):
        time.sleep(self._limits.delete)
        try:
            self._remove(slice_, slice_.all_slivers())
        except Exception:
            # It stays, and may be deleted again.
            traceback.print_exc()
            slice_.busy = False
            return
        with self.lock:
            del self.slices[slice_.urn]

    def _remove(self, slice_, slivers):
        if given := [s for s in slivers if s.reach]:
            self._nodes.remove(slice_, given)
        for sliver in slivers:
            self._inventory.release(sliver.machine)
