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
from ipaddress import IPv4Interface

from . import answers, urn
from .nodes import NodeBroken
from .slices import Place, Slice, Sliver, Ticket

_STAGES = {
    "geni_start": ("new", "stopped"),
    "geni_restart": ("started", "started"),
}
MONITOR = "start/restart in progress; try again later"


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
    def held(self, slice_, what="resource"):
        """Holds a slice for one call; refuses while another one has it, or nodes start."""
        with self.lock:
            if slice_.busy:
                raise answers.busy(f"{what} is busy; try again later")
            if slice_.starting:
                raise answers.busy(MONITOR)
            slice_.busy = True
        try:
            yield slice_
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
                    self._drop_ticket(slice_)
                    if not slice_.slivers:
                        del self.slices[slice_.urn]

    def allocate(self, slice_urn, request, expires, replace=False):
        """Promises slivers for a request; with `replace` instead of what there is, else besides.

        Args:
            slice_urn: The slice; it is made here when it is new.
            request: What is asked for.
            expires: When the credential does.
            replace: See above.
        """
        with self.lock:
            slice_ = self.find(slice_urn) or Slice(
                slice_urn, min(expires, self._after(self._limits.sliver))
            )
            with self.held(slice_, "slice"):
                before = slice_.ticket.request if slice_.ticket else slice_.request
                if before is not None and not replace:
                    request = before.joined(request)
                self._check(request)
                if request.expires:
                    self._end(slice_, request.expires, expires)
                self._promise(slice_, request)
                self.slices[slice_urn] = slice_
        return slice_

    def provision(self, slice_, users):
        """Redeems the ticket.

        Args:
            slice_: The slice.
            users: Keys by login name; as they are if empty.
        """
        with self.held(slice_):
            ticket = slice_.ticket
            if ticket is None:
                raise answers.Refusal(answers.REFUSED, "No allocated slivers exist")
            if ticket.until <= self._clock.now():
                raise answers.Refusal(answers.EXPIRED, "Ticket has expired")
            slice_.users = users or slice_.users
            slice_.expires = ticket.request.expires or slice_.expires
            dropped = [s for name, s in slice_.slivers.items() if name not in ticket.slivers]
            self._remove(slice_, dropped)
            with self.lock:
                for sliver in ticket.slivers.values():
                    if not sliver.is_provisioned:
                        sliver.reach = self._nodes.reach(sliver)
                        sliver.operational = "geni_notready"
                slice_.slivers, slice_.request, slice_.ticket = (
                    dict(ticket.slivers),
                    ticket.request,
                    None,
                )

    def perform(self, slice_, action, slivers):
        """Starts or restarts slivers in the background.

        A whole slice may be mixed, and the action is for those that it fits; of slivers
        that are named each must be as the action wants it.
        """
        fitting, text = _STAGES[action]
        with self.held(slice_):
            chosen = [s for s in slivers if s.stage == fitting]
            whole = len(slivers) == len(slice_.slivers)
            if not chosen or (len(chosen) < len(slivers) and not whole):
                raise answers.Refusal(answers.REFUSED, f"Sliver is not {text} (yet)")
            self._launch(slice_, action, chosen)

    def renew(self, slice_, until, credential_ends, alap):
        """Moves the end of a slice here; returns nothing, read it back.

        Args:
            slice_: The slice.
            until: Wanted.
            credential_ends: It cannot outlive the slice, which the credential stands for.
            alap: Cut what is longer than anybody gets, instead of refusing it.
        """
        with self.lock:
            if slice_.busy:
                raise answers.busy("slice is busy; try again later")
            slice_.expires = self._end(slice_, until, credential_ends, alap)

    def _end(self, slice_, until, credential_ends, alap=False):
        """Returns the end that a slice gets; the order of the refusals is Emulab's."""
        now = self._clock.now()
        latest = now + timedelta(seconds=self._limits.maximum)
        if until == slice_.expires:
            return until
        if until < now + timedelta(seconds=self._limits.minimum):
            raise answers.Refusal(answers.REFUSED, "such a short life for a sliver?")
        if until > credential_ends:
            text = "expiration is greater then slice expiration"
            raise answers.Refusal(answers.REFUSED, text)
        if until > latest and not alap:
            minutes = f"({self._limits.maximum // 60:.0f})"
            text = f"expiration increment is greater then the maximum number {minutes} of minutes"
            raise answers.Refusal(answers.REFUSED, text)
        return min(until, latest)

    def delete(self, slice_, blocking):
        """Removes a slice in the background, or before it returns."""
        with self.lock:
            with self.held(slice_):
                pass
            done = self._begin_removal(slice_)
        if blocking:
            done.result()

    def _after(self, seconds):
        return self._clock.now() + timedelta(seconds=seconds)

    def _check(self, request):
        for node in request.nodes.values():
            if len(node.interfaces) > self._nodes.max_links:
                text = f"*** {node.client_id} has too many interfaces; Could not verify topo:"
                raise answers.Refusal(answers.NO_MAPPING, text)
            if (
                node.image
                and node.image.startswith("urn:")
                and not self._site.has_image(node.image)
            ):
                raise answers.Refusal(answers.BADARGS, f"Unknown image URN: {node.image}")

    def _promise(self, slice_, request):
        known = {s.request.client_id: s for s in slice_.all_slivers()}
        kept = {name: known[name] for name in request.nodes if name in known}
        new = [node for name, node in request.nodes.items() if name not in known]
        machines = self._inventory.map(new, slice_.urn)
        slivers = {**kept}
        for node in new:
            slivers[node.client_id] = self._sliver(slice_, request, node, machines)
        # What an older ticket promised and this one does not goes back at once.
        for sliver in slice_.all_slivers():
            if sliver.request.client_id not in slivers and not sliver.is_provisioned:
                self._inventory.release(sliver.machine)
        for name in request.links:
            slice_.links.setdefault(name, self._urn())
        slice_.ticket = Ticket(request, slivers, self._after(self._limits.ticket))

    def _sliver(self, slice_, request, node, machines):
        host = f"{node.client_id}.{slice_.name}.{slice_.project}.{self._site.authority}"
        sliver = Sliver(self._urn(), node, machines[node.client_id], host)
        joined = {m: n for n, link in enumerate(request.links.values(), 1) for m in link.members}
        for number, interface in enumerate(node.interfaces):
            address = interface.address
            link = joined.get(interface.client_id)
            if address is None and link is not None:
                members = [*request.links.values()][link - 1].members
                host_part = members.index(interface.client_id) + 1
                address = IPv4Interface(f"10.10.{link}.{host_part}/24")
            octets = (address.ip.packed if address else bytes([10, 0, number, 1])).hex(":")
            sliver.places.append(
                Place(interface, self._urn(), f"eth{number + 1}", f"02:42:{octets}", address)
            )
        return sliver

    def _urn(self):
        return urn.make(self._site.authority, "sliver", str(next(self._numbers)))

    def _drop_ticket(self, slice_):
        for sliver in slice_.ticket.slivers.values():
            if not sliver.is_provisioned:
                self._inventory.release(sliver.machine)
        slice_.ticket = None

    def _launch(self, slice_, action, slivers):
        """Runs an action on each sliver in the background; the caller holds the slice."""
        with self.lock:
            for sliver in slivers:
                sliver.operational, sliver.stage = "geni_configuring", "started"
            slice_.starting += len(slivers)
        for sliver in slivers:
            self._pool.submit(self._run, slice_, action, sliver)

    def _run(self, slice_, action, sliver):
        state, error = "geni_failed", "internal error"
        try:
            self._do(slice_, action, sliver)
            state, error = "geni_ready", ""
        except NodeBroken as broken:
            error = str(broken)
        except Exception:
            traceback.print_exc()
        finally:
            with self.lock:
                sliver.operational, sliver.error = state, error
                slice_.starting -= 1

    def _do(self, slice_, action, sliver):
        fault = self._faults.take_node(sliver.request.client_id)
        time.sleep(fault.slow)
        if fault.fails:
            raise NodeBroken(fault.fails)
        start = self._nodes.restart if action == "geni_restart" else self._nodes.start
        start(slice_, sliver)

    def _begin_removal(self, slice_):
        slice_.busy = True
        return self._pool.submit(self._finish_removal, slice_)

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
        if given := [s for s in slivers if s.is_provisioned]:
            self._nodes.remove(slice_, given)
        for sliver in slivers:
            self._inventory.release(sliver.machine)
