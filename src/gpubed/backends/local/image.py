"""Node images: what is in them, and the driver that makes them.

An image is a cache of this machine, not a cluster's property: it is named by a hash
of what it is built from, shared by all clusters, and stays when a cluster goes.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from docker.errors import ImageNotFound

from gpubed import paths
from gpubed.backends.base import Driver, Properties
from gpubed.backends.local import daemon
from gpubed.backends.local.config import Runtime
from gpubed.errors import GpubedError

LABEL = "gpubed.image"
STAGE = "gpubed.stage"
_REPOSITORIES: dict[Runtime, str] = {"container": "gpubed-node", "vm": "gpubed-machine"}

# Version control and wheels keep neither owners nor all modes, so they are set here.
_MODES = {"usr/local/sbin": 0o755, "etc/sudoers.d": 0o440}


@dataclass(frozen=True)
class Release:
    """An operating system: a base image's name and a distribution's."""

    base: str
    suite: str


RELEASES = {
    "debian-12": Release("debian:bookworm-slim", "bookworm"),
    "debian-13": Release("debian:trixie-slim", "trixie"),
}


@dataclass(frozen=True)
class Recipe:
    """All that goes into an image, for both ways of building it.

    Args:
        name: The name of the operating system, a key of `RELEASES`.
        runtime: `vm` puts that system, and a kernel, on a disk, and qemu around it.
    """

    name: str
    runtime: Runtime = "container"

    @property
    def release(self) -> Release:
        """The operating system."""
        return RELEASES[self.name]

    @property
    def folder(self) -> Path:
        """Where the recipe's files are."""
        return paths.assets() / "templates" / ("machine" if self.runtime == "vm" else "node")

    @property
    def below(self) -> Recipe | None:
        """The recipe of the image that this one is built on, if it is one of ours."""
        return Recipe(self.name) if self.runtime == "vm" else None

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
        return f"{_REPOSITORIES[self.runtime]}:{self.name}-{self.digest}"

    @property
    def parts(self) -> list[str]:
        """Names of the recipe's own files: the Dockerfile, and what it copies."""
        return sorted(path.name for path in self.folder.iterdir() if path.is_file())

    def read(self, name: str) -> bytes:
        """Return one of the recipe's own files."""
        return (self.folder / name).read_bytes()


class ImageDriver(Driver):
    """Inputs: image, runtime, digest."""

    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        """Build the image unless this machine has it."""
        tag = ensure(Recipe(inputs["image"], inputs.get("runtime", "container")))
        return tag, {"tag": tag}

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        """Look whether this machine has the image."""
        return {"tag": id} if exists(id) else None

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        """Keep the image: other clusters may use it."""


def exists(tag: str) -> bool:
    """Return whether this machine has the image."""
    with daemon.errors(f"look for the image {tag}"):
        try:
            daemon.client().images.get(tag)
        except ImageNotFound:
            return False
    return True


def ensure(recipe: Recipe) -> str:
    """Build an image unless this machine has it; returns its tag."""
    from gpubed.backends.local import build

    if recipe.below:
        ensure(recipe.below)
    with _lock(recipe):
        if not exists(recipe.tag):
            build.build(recipe)
    return recipe.tag


def restore(tag: str) -> None:
    """Build an image again that somebody removed from the cache."""
    for recipe in (Recipe(name, runtime) for name in RELEASES for runtime in _REPOSITORIES):
        if recipe.tag == tag:
            ensure(recipe)
            return
    raise GpubedError(
        f"the node image {tag} is gone, and this version of gpubed builds another one",
        "gpubed down the cluster, then gpubed up again",
    )


@contextmanager
def _lock(recipe: Recipe) -> Iterator[None]:
    # Two clusters that come up at the same time need one image, once.
    paths.cache().mkdir(parents=True, exist_ok=True)
    with (paths.cache() / f"image-{recipe.runtime}-{recipe.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
