"""Options of the slices backend."""

from typing import Annotated, Literal

from pydantic import Field

from gpubed.core import wording
from gpubed.core.units import Seconds
from gpubed.spec.backend_config import BackendConfig
from gpubed.spec.sections import FILE

# None may look like an option of a command.
_WORD = wording.pattern(r"^[A-Za-z0-9][\w.-]*$", "letters, digits, '.', '_' and '-', no mark first")
Word = Annotated[str, Field(pattern=_WORD)]
File = Annotated[str, Field(pattern=FILE)]


class Config(BackendConfig):
    """Machines of SLICES' basic infrastructure, managed by the command `slices`."""

    plans_addresses = False
    leases = True

    type: Literal["slices"]
    project: Word = Field(description="your project: `slices project list`")
    experiment: Word | None = Field(
        default=None,
        description="the machines' experiment, made if missing; else `gpubed-` and the cluster",
    )
    infra: Word = Field(description="virtual or physical machines: `slices bi infra list`")
    flavor: Word = Field(description="of the groups that `flavors` leaves out")
    flavors: dict[str, Word] = Field(default={}, description="by node group")
    images: dict[str, str] = Field(
        default={"ubuntu-22.04": "Ubuntu 22.04.5", "ubuntu-24.04": "Ubuntu 24.04.3"},
        description="name of the disk image for each `image` of a node group",
    )
    key: File = Field(
        default="~/.ssh/id_ed25519",
        description="private key for the bastion, registered with `slices pubkey register`",
    )
    known_hosts: File = Field(default="~/.ssh/known_hosts", description="with the bastion's key")
    patience: Seconds = Field(default=2700.0, ge=1, description="for machines that are being made")
