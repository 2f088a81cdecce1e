"""Options of the local backend."""

from typing import Literal, NamedTuple

from pydantic import Field

from gpubed.spec.backend_config import BackendConfig

Runtime = Literal["container", "vm"]


class Release(NamedTuple):
    """An operating system: its base image, and its suite in Debian's archive."""

    base: str
    suite: str


RELEASES = {
    "debian-12": Release("debian:bookworm-slim", "bookworm"),
    "debian-13": Release("debian:trixie-slim", "trixie"),
}


class Config(BackendConfig):
    """Nodes on this machine."""

    shared_storage = "volume"
    simulates = True

    type: Literal["local"]
    runtime: Runtime = Field(
        default="container", description="vm: with a kernel of its own, and slower to start"
    )
