"""Changes the rates of links for measurements, on nodes that shape their own links.

The service `gpubed-link` of a node applies the rate in `/etc/gpubed/link`. While a rate may differ
from the declared one, the cluster's record has `reshaped` set. After a kill, the next `bench` or
`up` restores the rates.
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

# Without `reset-failed`, systemd refuses a service that starts several times within seconds.
_SHAPE = """
set -e
sed -i "s/^RATE_BPS=.*/RATE_BPS=$1/" /etc/gpubed/link
systemctl reset-failed gpubed-link.service
systemctl restart gpubed-link.service
"""
_RATE: TypeAdapter[int] = TypeAdapter(units.Rate)
_BARE = re.compile(r"\s*\d+(\.\d+)?\s*[kMGT]\s*")


def parse(value: object) -> int:
    """Return a rate in bit/s; the unit may be left out: `100M`.

    Raises:
        ValueError: The text is no rate.
    """
    text = f"{value}bit/s" if isinstance(value, str) and _BARE.fullmatch(value) else value
    try:
        return _RATE.validate_python(text)
    except ValidationError as error:
        raise ValueError(reading.words(error)) from None


def compact(bps: int) -> str:
    """Format a rate for use in a name: `100M`."""
    return units.format_rate(bps).removesuffix("bit/s").replace(" ", "")


def require_declared(paths: ClusterPaths) -> None:
    """Refuse links that may have another rate than declared.

    Raises:
        GpubedError: A `bench` is running, or was killed.
    """
    if record.read(paths).reshaped:
        raise GpubedError(
            f"links of {paths.name} may have another rate than declared: a `gpubed bench` "
            "is running, or was killed",
            f"wait for its end; after a kill: gpubed up {paths.name} restores them",
        )


def left_changed(paths: ClusterPaths) -> bool:
    """Return whether a killed `bench` may have left links with another than the declared rate."""
    return record.read(paths).reshaped and not runlock.holder(paths.state)


class Links:
    """The links of a cluster and the rates that this process set."""

    def __init__(self, paths: ClusterPaths, allocation: Allocation) -> None:
        self._paths = paths
        self._nodes = allocation.nodes
        self.declared = allocation.experiment.rate_bps if allocation.experiment else None
        self._rates: dict[str, int | None] = {}  # of links that surely have it
        if not record.read(paths).reshaped:
            self._rates = {node.name: self.declared for node in self._nodes}

    def set_rate(self, nodes: Iterable[Node], bps: int | None) -> None:
        """Set the rate of nodes' links in bit/s; None stands for the declared one."""
        wanted = self.declared if bps is None else bps
        due = [node for node in nodes if self._rates.get(node.name) != wanted]
        if not due or wanted is None:
            return
        self._note(reshaped=True)
        for node in due:
            self._rates.pop(node.name, None)

        def shape(node: Node) -> None:
            with SSH(node, self._paths) as session:
                session.run("sudo -n sh -c %s sh %s", _SHAPE, str(wanted))
            self._rates[node.name] = wanted

        parallel.each(shape, due)

    def restore(self) -> list[str]:
        """Restore the declared rate of every link; return an error per node that failed."""
        faults = []
        for node in self._nodes:
            try:
                self.set_rate([node], None)
            except GpubedError as error:
                faults.append(f"{node.name}: {error.message}")
        if not faults:
            self._note(reshaped=False)
        return faults

    def _note(self, *, reshaped: bool) -> None:
        if record.read(self._paths).reshaped != reshaped:
            with record.changed(self._paths) as cluster:
                cluster.reshaped = reshaped


def restore(paths: ClusterPaths, allocation: Allocation) -> Sequence[str]:
    """Restore the declared rates after a killed run; return an error per node that failed."""
    return Links(paths, allocation).restore() if record.read(paths).reshaped else []
