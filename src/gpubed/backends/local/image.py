"""Node images: what they are built from, and their names.

Images are shared by all clusters of this machine and stay when a cluster goes; their names hold a
hash of what they are built from.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from docker.errors import ImageNotFound

import simulated_gpus
from gpubed.backends.local import daemon
from gpubed.backends.local.config import Runtime
from gpubed.core.paths import assets

LABEL = "gpubed.image"
STAGE = "gpubed.stage"
REPOSITORIES: dict[Runtime, str] = {"container": "gpubed-node", "vm": "gpubed-machine"}

# Neither version control nor wheels keep owners and all modes, so they are set here.
_MODES = {"usr/local/sbin": 0o755, "etc/sudoers.d": 0o440}
# Files of a recipe's folder that are not part of an image.
_NO_PARTS = (".md", ".pyc")


class Release(NamedTuple):
    """An operating system: the names of its base image and of its distribution."""

    base: str
    suite: str


RELEASES = {
    "debian-12": Release("debian:bookworm-slim", "bookworm"),
    "debian-13": Release("debian:trixie-slim", "trixie"),
}


@dataclass(frozen=True)
class Recipe:
    """Everything that goes into an image of an operating system, a key of `RELEASES`.

    `vm` puts that system, and a kernel, on a disk for qemu.
    """

    name: str
    runtime: Runtime = "container"
    simulate: bool = False

    @property
    def release(self) -> Release:
        """The operating system."""
        return RELEASES[self.name]

    @property
    def folder(self) -> Path:
        """Where the recipe's files are."""
        if self.runtime == "vm":
            return assets() / "templates" / "machine"
        return simulated_gpus.IMAGE if self.simulate else assets() / "templates" / "node"

    @property
    def below(self) -> Recipe | None:
        """The recipe of the image that this one is built on, if it is one of ours."""
        if self.runtime == "vm":
            return Recipe(self.name, simulate=self.simulate)
        return Recipe(self.name) if self.simulate else None

    @cached_property
    def packages(self) -> list[str]:
        """Names of the packages."""
        lines = (self.folder / "packages").read_text(encoding="utf-8").splitlines()
        return [name for line in lines if (name := line.partition("#")[0].strip())]

    @cached_property
    def files(self) -> bytes:
        """A tar archive of the files that are laid over the system."""
        root, out = self.folder / "files", io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            for path in sorted(root.rglob("*")):
                name = str(path.relative_to(root))
                info = tarfile.TarInfo(name)
                if path.is_dir():
                    info.type, info.mode = tarfile.DIRTYPE, 0o755
                    tar.addfile(info)
                else:
                    info.size = path.stat().st_size
                    info.mode = _MODES.get(str(Path(name).parent), 0o644)
                    tar.addfile(info, io.BytesIO(path.read_bytes()))
        return out.getvalue()

    @cached_property
    def digest(self) -> str:
        """A hash of everything the image is built from."""
        base = self.below.digest if self.below else repr((self.name, self.release))
        digest = hashlib.sha256(base.encode())
        for content in (self.files, *(self.read(name) for name in self.parts)):
            digest.update(hashlib.sha256(content).digest())
        return digest.hexdigest()[:12]

    @property
    def tag(self) -> str:
        """The image's name in Docker."""
        kind = "-simulated" if self.simulate else ""
        return f"{REPOSITORIES[self.runtime]}:{self.name}{kind}-{self.digest}"

    @property
    def parts(self) -> list[str]:
        """Names of the recipe's own files: the Dockerfile and the files that it copies."""
        found = (path for path in self.folder.rglob("*") if path.is_file())
        names = {path.relative_to(self.folder) for path in found}
        return sorted(
            str(name) for name in names if name.parts[0] != "files" and name.suffix not in _NO_PARTS
        )

    def read(self, name: str) -> bytes:
        """Return one of the recipe's own files."""
        return (self.folder / name).read_bytes()


def exists(tag: str) -> bool:
    """Return whether this machine has the image."""
    with daemon.errors(f"look for the image {tag}"):
        try:
            daemon.look().images.get(tag)
        except ImageNotFound:
            return False
    return True


def is_same_system(one: str, other: str) -> bool:
    """Return whether two tags differ at most in the version of the recipe that made them."""
    return one.rpartition("-")[0] == other.rpartition("-")[0]
