"""Options of the local backend."""

from typing import Literal

from pydantic import Field

from gpubed.spec.backend_config import BackendConfig

Runtime = Literal["container", "vm"]


class Config(BackendConfig):
    """Nodes on this machine."""

    shared_storage = "volume"
    simulates = True

    type: Literal["local"]
    runtime: Runtime = Field(
        default="container", description="vm: with a kernel of its own, and slower to start"
    )
