"""What `gpubed probe` measured on a cluster, kept in its folder (`calibration.json`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from gpubed.core import files, reading
from gpubed.core.paths import ClusterPaths
from gpubed.core.units import Moment
from gpubed.prediction.model import Calibration

FILE = "calibration.json"
_Rate = Annotated[float, Field(gt=0, lt=1e15)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Way(_Model):
    """An allreduce between two nodes by one transport.

    Attributes:
        bus_bps: bit/s of each direction for long messages (2(N-1)/N x size / time).
        step_s: seconds of each of its 2(N-1) steps beside that.
    """

    bus_bps: _Rate
    step_s: Annotated[float, Field(ge=0)]


class Alone(_Model):
    """What one rank trains per second."""

    model: str
    image_size: int
    batch: int
    device: str
    images_per_s: _Rate


class Probed(_Model):
    """A probe; `uuid` is the cluster's, `link_bps` the links' declared rate, in bit/s."""

    contract: Literal["gpubed/calibration/1"] = Field(
        default="gpubed/calibration/1", alias="schema"
    )
    measured: Moment
    uuid: str
    link_bps: _Rate | None = None
    ways: dict[str, Way] = {}
    alone: Alone | None = None

    def calibration(self, transport: str, link_bps: float) -> Calibration | None:
        """Return numbers for links of a rate in bit/s; None for a transport that was not probed.

        Of links that are held to another rate, the same share is used.
        """
        way = self.ways.get(transport)
        if way is None or not self.link_bps:
            return None
        return replace(Calibration(), effective_bps=way.bus_bps * link_bps / self.link_bps)


def read(paths: ClusterPaths, uuid: str) -> Probed | None:
    """Return the last probe of a cluster; None if this cluster was never probed.

    Raises:
        Unreadable: The file is damaged.
    """
    path = paths.state / FILE
    if not path.exists():
        return None
    found = reading.file(path, f"gpubed probe {paths.name} writes it anew").json(Probed)
    return found if found.uuid == uuid else None


def write(paths: ClusterPaths, probed: Probed) -> None:
    """Keep a probe in place of the one before."""
    content = probed.model_dump_json(by_alias=True, indent=2)
    files.write(paths.state / FILE, content.encode(), durable=True)
