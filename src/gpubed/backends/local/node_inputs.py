"""What a node of the local backend is made from."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from gpubed.backends.local import ownership
from gpubed.backends.local.config import Runtime
from gpubed.backends.local.ownership import Owner

UPDATABLE = frozenset({"cpus", "memory", "link", "public_key", "certificates"})
CONFINED = "confined"


class _Model(BaseModel):
    # A resource also carries `backend` and `kind`, for the engine.
    model_config = ConfigDict(frozen=True, extra="ignore")


class Attachment(_Model):
    """An address on a Docker network."""

    network: str
    address: str


class Link(_Model):
    """How the node's interface on the experiment network is shaped."""

    subnet: str
    rate_bps: int
    mtu: int
    latency: float = 0.0
    """Of what leaves the node, in seconds."""
    loss: float = 0.0
    """Of what leaves the node, as a fraction."""

    @property
    def text(self) -> str:
        """The content of /etc/gpubed/link."""
        return (
            f"SUBNET={self.subnet}\nRATE_BPS={self.rate_bps}\nMTU={self.mtu}\n"
            f"DELAY_US={self.latency * 1e6:.0f}\nLOSS_PERCENT={self.loss * 100:.4f}\n"
        )


class Shared(_Model):
    """The shared volume and where it is mounted."""

    volume: str
    path: str


class Simulation(_Model):
    """GPUs that the node pretends to have."""

    model: str
    gpus: int


class NodeInputs(_Model):
    """All inputs of a node; numbers arrive as floats, Pulumi's only number type."""

    cluster: str
    uuid: str
    name: str
    runtime: Runtime = "container"
    image: str
    public_key: str
    control: Attachment
    experiment: Attachment | None = None
    link: Link | None = None
    shared: Shared | None = None
    cpus: float | None = None
    memory: int | None = None
    gpus: tuple[str, ...] = ()
    simulate: Simulation | None = None
    certificates: str | None = None
    """A hash of this machine's CA bundle, where the environment names one."""
    confined: bool = False
    """Whether it can do with a confined container (`confinement`), if this machine has one."""

    @property
    def owner(self) -> Owner:
        """The cluster."""
        return Owner(self.cluster, self.uuid)

    @property
    def digest(self) -> str:
        """A hash of what cannot change in place."""
        # A container with more rights than needed is still the same node.
        exclude = {*UPDATABLE, CONFINED}
        return ownership.digest(self.model_dump(mode="json", exclude=exclude))
