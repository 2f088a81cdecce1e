"""Finds a testbed by its backend's name, and reads a cluster's specifications for it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from gpubed.core import files, located, record
from gpubed.core.errors import PrerequisiteMissing, UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.spec import backend_config, clusterspec
from gpubed.spec.clusterspec import ClusterSpec, SpecError, refusal, spec_backend
from gpubed.testbeds.base import Backend, Testbed


@cache
def backend(name: str) -> Backend:
    """Return the backend of a name; its ImportError is raised if it is only half installed."""
    names = backend_config.names()
    if name not in names:
        raise UsageError(f"there is no backend {name!r}", f"backends: {', '.join(names)}")
    made: Backend = import_module(f"gpubed.backends.{name}.backend").create()
    return made


def check(path: Path, name: str = "") -> tuple[ClusterSpec | None, list[SpecError]]:
    """Read a specification; return it, None if unusable, and its and its testbed's errors by line.

    Without a `name`, the cluster's is that of the file's folder.
    """
    return clusterspec.read(path, name, lambda found: backend(spec_backend(found)).check(found))


def bound(name: str, paths: ClusterPaths) -> Testbed:
    """Return the testbed of a cluster on a backend; nothing is read or asked yet."""
    return backend(name).bind(reach(name, paths), paths)


def reach(name: str, paths: ClusterPaths) -> Reach:
    """Return how a cluster reaches the testbed of that name."""
    return Reach(name, paths)


class Reach:
    """How one testbed of a cluster is reached, according to the cluster's specifications.

    They are read only when asked for, so that testbeds that need none of their options work
    without, and `down` works while the file is being edited. The present one is read once; each
    verb makes a new object. With `copy`, that kept specification is read instead.
    """

    def __init__(self, backend: str, paths: ClusterPaths, copy: Path | None = None) -> None:
        self._backend, self._paths, self._copy = backend, paths, copy

    @cached_property
    def specification(self) -> ClusterSpec:
        """The present specification, or else the last one applied on this testbed.

        A specification given as `copy` is never replaced by another, which would lead elsewhere.
        Raises `UsageError` if it has errors or is missing, and no copy was kept,
        `PrerequisiteMissing` if it names another testbed, and no copy was kept.
        """
        found, errors = self._checked
        if not self.is_former and (found is None or spec_backend(found) != self._backend):
            former = self.last
            if former is not None and spec_backend(former) == self._backend:
                return former
        if found is None:
            message = refusal(self._file, errors).message
            raise UsageError(message, f"restore {self._file}, or put right what is wrong with it")
        if spec_backend(found) != self._backend:
            raise PrerequisiteMissing(
                f"the specification of {self._paths.name} no longer says how {self._backend} is "
                "reached",
                "put its former `backend:` back until the cluster is down",
            )
        return found

    @property
    def is_former(self) -> bool:
        """Whether only a kept specification is read."""
        return self._copy is not None

    @property
    def wanted(self) -> ClusterSpec | None:
        """The specification, whatever testbed it names; None if it is unusable."""
        return self._checked[0]

    @property
    def last(self) -> ClusterSpec | None:
        """The specification that was last applied on this testbed; None if it is unusable."""
        with suppress(UsageError):
            return self.applied()
        return None

    def applied(self) -> ClusterSpec:
        """Return the specification last applied on this testbed; UsageError if none is usable."""
        found, errors = check(self._last, self._paths.name)
        if found is None:
            raise refusal(self._last, errors)
        return found

    def keep(self) -> str:
        """Keep a copy of the present specification; return its name, empty if it is unusable."""
        found = self.wanted
        if found is None or spec_backend(found) != self._backend:
            return ""
        text = files.read(self._file, located.MAX_BYTES)
        name = f"{self._backend}-{record.digest(text)}.yml"
        if not (copy := self._paths.specifications / name).is_file():
            files.make(self._paths.specifications)
            files.write(copy, text, durable=True)  # needed to find resources on that testbed again
        return name

    @cached_property
    def options(self) -> Mapping[str, Any] | None:
        """The specification's section `backend:`, unchecked, even if the file has errors.

        None if it is for another kind of testbed, or cannot be read.
        """
        return self._section(self._file)

    def former_options(self) -> list[Mapping[str, Any] | None]:
        """Return the sections `backend:` of all kept specifications."""
        kept = [self._copy] if self._copy else record.specifications(self._paths, self._backend)
        return [self._section(copy) for copy in kept]

    @property
    def last_options(self) -> Mapping[str, Any] | None:
        """The section `backend:` of the specification that was last applied on this testbed."""
        return self._section(self._last)

    def by(self, copy: Path) -> Reach:
        """Return how a kept specification says the testbed is reached."""
        return Reach(self._backend, self._paths, copy)

    @property
    def _last(self) -> Path:
        name = record.read(self._paths).last(self._backend)
        return self._copy or self._paths.specifications / (name or f"{self._backend}.yml")

    @property
    def _file(self) -> Path:
        return self._copy or self._paths.spec_in_use

    @cached_property
    def _checked(self) -> tuple[ClusterSpec | None, list[SpecError]]:
        return check(self._file, self._paths.name)

    def _section(self, path: Path) -> Mapping[str, Any] | None:
        try:
            data = located.read(path).data
        except (OSError, located.MalformedYamlError):
            return None
        found = data.get("backend") if isinstance(data, dict) else None
        is_one = isinstance(found, dict) and found.get("type") == self._backend
        return found if is_one else None
