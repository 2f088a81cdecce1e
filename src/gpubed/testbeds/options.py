"""Reads a cluster's specifications for its testbed; no other module does.

They are read only on access: testbeds without options work without a specification, and `down`
works while the file is being edited.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from gpubed.core import files, record, yaml_lines
from gpubed.core.errors import PrerequisiteMissing, UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.spec.backend_config import canonical
from gpubed.spec.clusterspec import ClusterSpec, SpecError, refusal, spec_backend

Check = Callable[[Path, str], tuple[ClusterSpec | None, list[SpecError]]]


class TestbedOptions:
    """The options by which a cluster reaches one testbed.

    Args:
        backend: The testbed's kind.
        paths: The cluster's paths.
        check: Reads and checks a specification, given its file and the cluster's name.
        copy: A kept specification to read instead of the present one. It is never replaced by
            another one, which could lead to another testbed.
    """

    def __init__(
        self, backend: str, paths: ClusterPaths, check: Check, copy: Path | None = None
    ) -> None:
        self._backend, self._paths, self._check, self._copy = backend, paths, check, copy

    @cached_property
    def specification(self) -> ClusterSpec:
        """The present specification, or else the last one applied on this testbed.

        If no copy of a former one was kept: raises `UsageError` if it has errors or is missing,
        `PrerequisiteMissing` if it names another testbed.
        """
        found, errors = self._checked
        if not self.is_former and (found is None or spec_backend(found) != self._backend):
            former = self.last
            if former is not None and spec_backend(former) == self._backend:
                return former
        if found is None:
            message = refusal(self._file, errors).message
            raise UsageError(message, f"restore or correct {self._file}")
        if spec_backend(found) != self._backend:
            raise PrerequisiteMissing(
                f"the specification of {self._paths.name} no longer says how {self._backend} is "
                "reached",
                "put its former `backend:` back until the cluster is down",
            )
        return found

    @property
    def is_former(self) -> bool:
        """Whether these are the options of a kept specification."""
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
        found, errors = self._check(self._last, self._paths.name)
        if found is None:
            raise refusal(self._last, errors)
        return found

    def keep(self) -> str:
        """Copy the present specification to the kept ones; return its name, empty if unusable."""
        found = self.wanted
        if found is None or spec_backend(found) != self._backend:
            return ""
        text = files.read(self._file, yaml_lines.MAX_BYTES)
        name = f"{self._backend}-{record.digest(text)}.yml"
        if not (copy := self._paths.specifications / name).is_file():
            files.make(self._paths.specifications)
            files.write(copy, text, durable=True)  # needed to find resources on that testbed again
        return name

    @cached_property
    def options(self) -> Mapping[str, Any] | None:
        """The specification's section `backend:`, unchecked; None for another kind of testbed.

        None, too, if the file is no YAML mapping.
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

    def of_copy(self, copy: Path) -> TestbedOptions:
        """Return the options in a kept specification."""
        return TestbedOptions(self._backend, self._paths, self._check, copy)

    @property
    def _last(self) -> Path:
        name = record.read(self._paths).last(self._backend)
        return self._copy or self._paths.specifications / (name or f"{self._backend}.yml")

    @property
    def _file(self) -> Path:
        return self._copy or self._paths.spec_in_use

    @cached_property
    def _checked(self) -> tuple[ClusterSpec | None, list[SpecError]]:
        return self._check(self._file, self._paths.name)

    def _section(self, path: Path) -> Mapping[str, Any] | None:
        try:
            data = yaml_lines.read(path).data
        except (OSError, yaml_lines.MalformedYamlError):
            return None
        found = data.get("backend") if isinstance(data, dict) else None
        if not isinstance(found, dict):
            return None
        return found if canonical(str(found.get("type"))) == self._backend else None
