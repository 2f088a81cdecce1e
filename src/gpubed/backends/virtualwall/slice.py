"""The slice: all nodes and links of a cluster, which the testbed grants as one."""

from __future__ import annotations

from typing import Any

from gpubed.backends.virtualwall import login as logins
from gpubed.backends.virtualwall.connection import connect
from gpubed.backends.virtualwall.reservation import Reservation
from gpubed.backends.virtualwall.slice_inputs import SliceInputs, TooFew
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths
from gpubed.testbeds.driver import Change, Driver, Properties

# An end is moved by `gpubed renew`; how the testbed is reached may change under a slice.
_UNSEEN = frozenset({"duration"})
_IN_PLACE = frozenset({"testbed", "groups"})
_GIVING_BACK_S = 300.0


class SliceDriver(Driver):
    """Inputs: see `SliceInputs`. Emulab grants and takes back a slice as a whole."""

    def __init__(self, paths: ClusterPaths) -> None:
        self._paths = paths

    def diff(self, result: Properties, olds: Properties, news: Properties) -> Change:
        """Replace for another request, key or place; update for the rest.

        Nodes that the testbed did not have are requested again, in place.
        """
        changed = {key for key in {*olds, *news} if olds.get(key) != news.get(key)} - _UNSEEN
        replace = changed - _IN_PLACE
        if "testbed" in changed and _place(olds) != _place(news):
            replace |= {"testbed"}
        if replace:
            # A preview may not know yet by what: a lost key has no successor then.
            return Change(replace=sorted(replace), update=sorted(changed - replace))
        nodes = result.get("nodes", {})
        more = SliceInputs.of(news).missing(nodes)
        is_unfinished = more or any(node.get("booting") for node in nodes.values())
        return Change(update=sorted(changed | ({"nodes"} if is_unfinished else set())))

    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        """Hold the slice until its nodes are ready; adopt what an interrupted run began."""
        reservation = self._reservation(inputs, is_requested=True)
        wanted = reservation.wanted
        try:
            results = reservation.judge(reservation.hold())
            wanted.require_enough(results)
        except GpubedError as error:
            down = f"gpubed down {wanted.cluster}"
            if reservation.is_a_failed_start:
                try:
                    reservation.release(_GIVING_BACK_S)
                except GpubedError as kept:
                    error.hint = f"the testbed may still hold nodes ({kept.message}): {down}"
            elif isinstance(error, TooFew):
                error.hint = (
                    "the nodes stay, since they may be in use: a smaller `min` goes on without "
                    f"those that failed; or give all up: {down}"
                )
            raise
        return reservation.urn, {"slice": reservation.urn, "nodes": results}

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        """Look at the slice; one that has expired is gone."""
        reservation = self._reservation(inputs, id)
        found = reservation.look()
        if found is None:
            return None
        return {"slice": reservation.urn, "nodes": reservation.judge(found)}

    def update(self, id: str, olds: Properties, news: Properties) -> dict[str, Any]:  # noqa: A002
        """Look at the slice with the new way to reach it, and request what it lacks."""
        reservation = self._reservation(news, id, is_requested=True)
        found = reservation.complete()
        if found is None:
            raise GpubedError(
                f"the slice of {news['cluster']} is gone", f"gpubed up {news['cluster']} --refresh"
            )
        return {"slice": reservation.urn, "nodes": reservation.judge(found)}

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        """Release all nodes. The slice itself stays, empty, until it expires."""
        self._reservation(inputs, id).release()

    def _reservation(
        self, inputs: Properties, urn: str = "", *, is_requested: bool = False
    ) -> Reservation:
        wanted = SliceInputs.of(inputs)
        there = connect(wanted.testbed)
        # Fails before the first node is requested if there will be no way to it.
        if is_requested and wanted.testbed.bastion:
            logins.require(wanted.testbed.bastion, there.login)
            logins.renew_identity(wanted.testbed, there.login, self._paths)
        return Reservation(wanted, there, self._paths, urn=urn)


def _place(inputs: Properties) -> tuple[Any, Any]:
    testbed = inputs["testbed"]
    return testbed["aggregate"]["urn"], testbed["project"]
