"""Options of the local backend."""

from typing import Literal

from gpubed.backends.base import BackendConfig


class Config(BackendConfig):
    """Nodes on this machine."""

    type: Literal["local"]
    runtime: Literal["container"] = "container"
