"""The rate of links while something is measured: nodes that shape their own links change it.

A node's `gpubed-link` does the work, as at boot and in `up`; `/etc/gpubed/link` has the rate.
A file of the cluster's state is there while links may have another rate than the declared one;
after a kill in between, the next `bench` or `up` puts them back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pydantic import TypeAdapter, ValidationError

from gpubed.core import parallel, reading, record, runlock, units
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths
from gpubed.nodes.allocation import Allocation, Node
from gpubed.nodes.ssh import SSH

# Systemd takes a service that starts often within seconds for one that fails.
_SHAPE = """
set -e
sed -i "s/^RATE_BPS=.*/RATE_BPS=$1/" /etc/gpubed/link
systemctl reset-failed gpubed-link.service
systemctl restart gpubed-link.service
"""
_RATE: TypeAdapter[int] = TypeAdapter(units.Rate)
_BARE = re.compile(r"\s*\d+(\.\d+)?\s*[kMGT]\s*")


def parse(value: object) -> int:
    """Read a rate in bit/s, also without its unit: `100M`; raises ValueError."""
    text = f"{value}bit/s" if isinstance(value, str) and _BARE.fullmatch(value) else value
    try:
        return _RATE.validate_python(text)
    except ValidationError as error:
        raise ValueError(reading.words(error)) from None


def compact(bps: int) -> str:
    """Write a rate for a name: `100M`."""
    return units.format_rate(bps).removesuffix("bit/s").replace(" ", "")


def require_declared(paths: ClusterPaths) -> None:
    """Refuse to measure on links that may have another rate than the declared one.

    Raises:
        GpubedError: They may, since a `bench` is at work, or was killed.
    """
    if record.read(paths).reshaped:
        raise GpubedError(
            f"links of {paths.name} may have another rate than declared: a `gpubed bench` "
            "is at work, or was killed",
            f"wait for its end; after a kill: gpubed up {paths.name} puts them back",
        )


def left_changed(paths: ClusterPaths) -> bool:
    """Say whether a killed `bench` left links with another rate than the declared one."""
    return record.read(paths).reshaped and not runlock.holder(paths.state)


class Links:
    """The links of a cluster, and the rate of each, as far as this run knows."""

    def __init__(self, paths: ClusterPaths, allocation: Allocation) -> None:
        self._paths = paths
        self._nodes = allocation.nodes
        self.declared = allocation.experiment.rate_bps if allocation.experiment else None
        known = {} if record.read(paths).reshaped else {n.name: self.declared for n in self._nodes}
        self._rates: dict[str, int | None] = known

    def hold(self, nodes: Iterable[Node], bps: int | None) -> None:
        """Give the links of nodes a rate in bit/s; None stands for the declared one.

        Raises:
            GpubedError: A node does not answer, or cannot shape its link.
        """
        wanted = self.declared if bps is None else bps
        due = [node for node in nodes if self._rates.get(node.name) != wanted]
        if not due or wanted is None:
            return
        self._note(reshaped=True)
        for node in due:
            self._rates.pop(node.name, None)
        parallel.each(lambda node: self._shape(node, wanted), due)

    def restore(self) -> list[str]:
        """Give every link its declared rate; return why some could not have it."""
        faults = []
        for node in self._nodes:
            try:
                self.hold([node], None)
            except GpubedError as error:
                faults.append(f"{node.name}: {error.message}")
        if not faults:
            self._note(reshaped=False)
        return faults

    def _note(self, *, reshaped: bool) -> None:
        if record.read(self._paths).reshaped != reshaped:
            with record.changed(self._paths) as known:
                known.reshaped = reshaped

    def _shape(self, node: Node, bps: int) -> None:
        with SSH(node, self._paths) as session:
            session.run("sudo -n sh -c %s sh %s", _SHAPE, str(bps))
        self._rates[node.name] = bps


def restore(paths: ClusterPaths, allocation: Allocation) -> Sequence[str]:
    """Give links the declared rate after a killed run; return why some could not have it."""
    return Links(paths, allocation).restore() if record.read(paths).reshaped else []
