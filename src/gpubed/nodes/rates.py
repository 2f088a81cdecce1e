"""The rate of links while something is measured: nodes that shape their own links change it.

A node's `gpubed-link` does the work, as at boot and in `up`; `/etc/gpubed/link` says the rate.
A file of the cluster's state tells that links may have another rate than the declared one, from
before the first is changed until the last is as declared: whoever is killed in between leaves
it to the next `bench` or `up`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pydantic import TypeAdapter, ValidationError

from gpubed.core import parallel, reading, runlock, units
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
    """Read a rate, also without its unit: `100M`.

    Returns:
        The rate in bit/s.

    Raises:
        ValueError: It is none.
    """
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
    if paths.reshaped.exists():
        raise GpubedError(
            f"links of {paths.name} may have another rate than declared: a `gpubed bench` "
            "is at work, or was killed",
            f"wait for its end; after a kill: gpubed up {paths.name} puts them back",
        )


def left_changed(paths: ClusterPaths) -> bool:
    """Say whether a killed `bench` left links with another rate than the declared one."""
    return paths.reshaped.exists() and not runlock.holder(paths.state)


class Links:
    """The links of a cluster, and at which rate each is, as far as this run knows."""

    def __init__(self, paths: ClusterPaths, allocation: Allocation) -> None:
        self._paths = paths
        self._nodes = allocation.nodes
        self.declared = allocation.experiment.rate_bps if allocation.experiment else None
        known = {} if paths.reshaped.exists() else {n.name: self.declared for n in self._nodes}
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
        self._paths.reshaped.touch()
        for node in due:
            self._rates.pop(node.name, None)
        parallel.each(lambda node: self._shape(node, wanted), due)

    def restore(self) -> list[str]:
        """Give every link its declared rate; return why some could not have it."""
        faults = [fault for node in self._nodes if (fault := self._restored(node))]
        if not faults:
            self._paths.reshaped.unlink(missing_ok=True)
        return faults

    def _restored(self, node: Node) -> str:
        try:
            self.hold([node], None)
        except GpubedError as error:
            return f"{node.name}: {error.message}"
        return ""

    def _shape(self, node: Node, bps: int) -> None:
        with SSH(node, self._paths) as session:
            session.run("sudo -n sh -c %s sh %s", _SHAPE, str(bps))
        self._rates[node.name] = bps


def restore(paths: ClusterPaths, allocation: Allocation) -> Sequence[str]:
    """Give links the declared rate where a run that was killed may have left another one.

    Returns:
        Why some could not have it; empty where all have it.
    """
    if not paths.reshaped.exists():
        return []
    return Links(paths, allocation).restore()
