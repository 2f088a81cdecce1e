"""A recipe: a software stack, pinned by a lock, and the GPUs that it supports.

`recipe.yml` describes the stack, `requirements.txt` pins every package with its
hashes, `architectures.json` lists the architectures of the packages' GPU code. Nothing here
uses a network or a node.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from gpubed.core import reading
from gpubed.core.errors import UsageError
from gpubed.core.paths import recipes
from gpubed.recipes.fatbin import Architectures

_HASH = re.compile(r"--hash=(sha256:[0-9a-f]{64})\b")
# Packages that a recipe's GPUs need not support: sparse tensor cores exist from Ampere on, and
# only programs that ask for NVSHMEM use it.
_NOT_DECISIVE = ("nvidia-cusparselt", "nvidia-nvshmem")
_RECORD = TypeAdapter(dict[str, dict[str, Architectures]])


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Lock(_Model):
    """The hashed lock and its checksum."""

    file: str
    sha256: str


class Horovod(_Model):
    """How Horovod is built."""

    version: str
    sha256: str
    cxx_standard: int
    mpi: bool
    gloo: bool
    gpu_operations: Literal["none", "nccl"]


class Gpus(_Model):
    """The GPUs that the recipe supports.

    Attributes:
        architectures: Compute capabilities that there is machine code for; it
            also runs on later minor versions of the same major one.
        driver: The oldest driver that runs this CUDA, by NVIDIA's minor version
            compatibility (docs.nvidia.com/deploy/cuda-compatibility).
    """

    architectures: tuple[str, ...] = ()
    driver: str | None = None

    def serve(self, capability: str) -> bool:
        """Return whether a GPU of this compute capability can run the recipe."""
        return Architectures(cubin=self.architectures).serve(capability)

    def accept(self, driver: str) -> bool:
        """Return whether a driver of this version can run the recipe."""
        return self.driver is not None and Version(driver) >= Version(self.driver)


class Recipe(_Model):
    """The content of `recipe.yml`.

    Attributes:
        cuda: CUDA's version; None without GPUs.
        compiler: Source of the CUDA compiler that builds Horovod: the lock, or the head's
            system.
    """

    schema_version: Literal["gpubed/recipe/1"] = Field(alias="schema")
    name: str
    description: str
    python: str
    torch: str
    lock: Lock
    horovod: Horovod
    mpi: Literal["openmpi"]
    cuda: str | None
    compiler: Literal["lock", "system"] | None
    gpus: Gpus

    @property
    def folder(self) -> Path:
        """The folder with the recipe's files."""
        return recipes() / self.name

    @property
    def lock_path(self) -> Path:
        """The path of the lock."""
        return self.folder / self.lock.file

    @property
    def record_path(self) -> Path:
        """The path of the file that lists the architectures of the packages' GPU code."""
        return self.folder / "architectures.json"

    def lock_sha256(self) -> str:
        """Return the SHA-256 of the lock file."""
        return hashlib.sha256(self.lock_path.read_bytes()).hexdigest()

    def locked(self) -> list[Locked]:
        """Return the entries of the lock."""
        lock = reading.file(self.lock_path, f"gpubed recipe check {self.name}")
        try:
            return list(parse_lock(lock.text()))
        except ValueError as error:
            raise lock.refusal(str(error)) from None

    def wanted(self) -> list[Requirement]:
        """Return the requirements in `requirements.in`."""
        path = self.folder / "requirements.in"
        file = reading.file(path, f"gpubed recipe check {self.name}")
        lines = (line.partition("#")[0].strip() for line in file.text().splitlines())
        try:
            return [Requirement(line) for line in lines if line]
        except InvalidRequirement as error:
            raise file.refusal(str(error)) from None

    def measured(self) -> dict[str, dict[str, Architectures]]:
        """Return the architectures of the packages, by `name==version` and library."""
        path = self.record_path
        return reading.file(path, f"correct {path}").json(_RECORD) if path.is_file() else {}


@dataclass(frozen=True)
class Locked:
    """One entry of a lock.

    Attributes:
        name: Normalized name.
        marker: The condition under which it is installed; None if always.
        hashes: Hashes of all acceptable files.
    """

    name: str
    version: str
    marker: Marker | None
    hashes: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"

    def applies(self, environment: Mapping[str, str]) -> bool:
        """Return whether a Python environment with these markers gets this package."""
        return self.marker is None or self.marker.evaluate(dict(environment))


@cache
def names() -> tuple[str, ...]:
    """Return the names of all recipes, sorted."""
    return tuple(sorted(path.parent.name for path in recipes().glob("*/recipe.yml")))


@cache
def content(name: str) -> dict[str, Any]:
    """Return the content of `recipe.yml` as written; the caller must not change it."""
    path = recipes() / name / "recipe.yml"
    return reading.file(path, f"correct {path}").yaml(dict[str, Any])


@cache
def load(name: str) -> Recipe:
    """Return a recipe."""
    if name not in names():
        raise UsageError(f"there is no recipe {name!r}", f"recipes: {', '.join(names())}")
    path = recipes() / name / "recipe.yml"
    return reading.file(path, f"correct {path}").yaml(Recipe)


def serving(capability: str) -> list[str]:
    """Return the names of the recipes that support GPUs of a compute capability."""
    return [name for name in names() if load(name).gpus.serve(capability)]


def with_gpus() -> list[str]:
    """Return the names of the recipes that support any GPU."""
    return [name for name in names() if load(name).gpus.architectures]


def why_not(recipe: Recipe, capability: str) -> str:
    """Return why GPUs of a compute capability cannot be used; empty if they can."""
    if recipe.gpus.serve(capability):
        return ""
    others = " or ".join(serving(capability))
    return f"recipe {recipe.name} has no code for GPUs of compute capability {capability}; " + (
        f"recipe {others} has" if others else "no recipe has"
    )


def parse_lock(text: str) -> Iterator[Locked]:
    """Yield the entries of a lock; raise ValueError if a line does not pin an exact version."""
    joined = re.sub(r"(?m)^\s*#.*$", "", text).replace("\\\n", " ")
    for line in filter(None, map(str.strip, joined.splitlines())):
        requirement = line.partition("--hash")[0].strip()
        pinned, _, marker = requirement.partition(" ; ")
        name, equal, version = pinned.strip().partition("==")
        if not equal:
            raise ValueError(f"not an exact version: {line[:80]}")
        yield Locked(
            canonicalize_name(name),
            version,
            Marker(marker) if marker else None,
            tuple(_HASH.findall(line)),
        )


def write_record(path: Path, record: dict[str, dict[str, Architectures]]) -> None:
    """Write the architectures of packages."""
    path.write_bytes(_RECORD.dump_json(record, indent=1) + b"\n")


def unserved(recipe: Recipe, record: dict[str, dict[str, Architectures]]) -> list[str]:
    """Return a sentence for each package and GPU of a recipe for which code is missing."""
    lacking = []
    for package, libraries in sorted(record.items()):
        if not libraries or package.startswith(_NOT_DECISIVE):
            continue
        for capability in recipe.gpus.architectures:
            # A single library may support some GPUs only; the package must support all.
            if not any(code.serve(capability) for code in libraries.values()):
                lacking.append(f"{package} has no code for compute capability {capability}")
    return lacking
