"""Drives a cluster's Pulumi stack with the CLI or the embedded engine.

Both run the same program on the same state: the CLI through Pulumi's Automation API if it is on
PATH, else the embedded engine.
"""

from __future__ import annotations

import secrets
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal

from gpubed.core import reading, runlock, secret
from gpubed.core.errors import GpubedError, PrerequisiteMissing, UsageError
from gpubed.core.paths import ClusterPaths, Project
from gpubed.engines import embedded
from gpubed.spec.clusterspec import spec_backend
from gpubed.testbeds import history, registry
from gpubed.testbeds.specification import load

if TYPE_CHECKING:
    from gpubed.engines import automation
    from gpubed.engines.embedded import Engine, EventSink, Result

EngineName = Literal["cli", "embedded"]
# Variables with which plain `pulumi` would use another passphrase, or write a state that the
# embedded engine does not find or cannot read.
UNSET = (
    "PULUMI_CONFIG_PASSPHRASE",
    "PULUMI_DIY_BACKEND_GZIP",
    "PULUMI_DIY_BACKEND_LEGACY_LAYOUT",
    "PULUMI_DIY_BACKEND_ZSTD",
)


def choose(wanted: str | None) -> EngineName:
    """Return the wanted engine, by default the CLI if it is on PATH."""
    if wanted not in (None, "cli", "embedded"):
        raise UsageError(f"there is no engine {wanted!r}", "--engine cli or --engine embedded")
    present = shutil.which("pulumi") is not None
    if wanted == "cli" and not present:
        raise PrerequisiteMissing("the Pulumi CLI is not on PATH", "gpubed doctor --fix")
    return "cli" if present and wanted != "embedded" else "embedded"


def passphrase_file(project: Project) -> Path:
    """Return the file with the passphrase of the project's stacks; create it if missing."""
    path = project.pulumi / "passphrase"
    if not path.exists():
        _require_unsealed(project, path)
        secret.write(path, secrets.token_urlsafe(32).encode())
    return path


def _require_unsealed(project: Project, passphrase: Path) -> None:
    for config in sorted((project.pulumi / "config").glob("Pulumi.*.yaml")):
        if b"encryptionsalt" not in reading.file(config).data:
            continue
        name = config.name.split(".")[1]
        states = (project.pulumi / ".pulumi" / "stacks").glob(f"*/{name}.json")
        aside = "".join(f"; mv {quote(str(state))} {quote(f'{state}.sealed')}" for state in states)
        raise PrerequisiteMissing(
            f"{passphrase} is lost, which decrypts the state of {name}",
            f"put it back; if it is lost for good: rm {quote(str(config))}{aside}   "
            f"(then: gpubed audit {name} --adopt takes over what exists)",
        )


def environment(paths: ClusterPaths) -> dict[str, str]:
    """Return the variables with which plain `pulumi` works on a cluster's stack."""
    project, plugins, names = paths.project, dict[str, str](), history.kinds(paths)
    with suppress(GpubedError):  # `down` works without a specification
        names = [*names, spec_backend(load(paths.spec_in_use, paths.name))]
    for name in names:
        with suppress(GpubedError):
            plugins |= registry.bound(name, paths).plugin_environment()
    return {
        **plugins,
        "PULUMI_BACKEND_URL": project.pulumi.as_uri(),
        "PULUMI_CONFIG_PASSPHRASE_FILE": str(passphrase_file(project)),
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        # Else the CLI fetches a plugin for every installed package.
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        # This interpreter has the packages that the program imports.
        "PULUMI_PYTHON_CMD": sys.executable,
        "GPUBED_ROOT": str(project.root),
        # gRPC's fork handlers would end the program, which starts processes during calls.
        "GRPC_ENABLE_FORK_SUPPORT": "false",
    }


@dataclass(frozen=True)
class Stack:
    """The stack of one cluster."""

    paths: ClusterPaths
    engine: EngineName

    def init(self) -> None:
        """Create an empty stack if there is none, so that Pulumi's CLI can select it."""
        (self.paths.project.pulumi / "config").mkdir(exist_ok=True)
        self._embedded().init()

    def preview(self, sink: EventSink, *, refresh: bool = False) -> Result:
        """Compute what `up` would do; `refresh` reads every resource first."""
        return self._operate("preview", sink, refresh=refresh)

    def up(self, sink: EventSink) -> Result:
        """Create, update and delete resources as the specification says."""
        return self._operate("up", sink)

    def refresh(self, sink: EventSink) -> Result:
        """Read every resource from the testbed; drop those that are gone from the state.

        Pending creations of a killed run are cleared: drivers adopt their leftovers.
        """
        return self._operate("refresh", sink, clear_pending_creates=True)

    def mend(self) -> None:
        """Mark volumes as retained; states of former versions lack that, and would lose data."""
        self._embedded().edit(
            lambda resources: [
                {**resource, "retainOnDelete": True}
                if resource["type"].endswith(":Volume")
                else resource
                for resource in resources
            ]
        )

    def interrupted(self) -> bool:
        """Return whether an earlier run was killed while it created a resource."""
        return bool(self.export().get("deployment", {}).get("pending_operations"))

    def has_resources(self) -> bool:
        """Return whether the state has resources."""
        return bool(self.export().get("deployment", {}).get("resources"))

    def destroy(self, sink: EventSink) -> Result:
        """Remove every resource, then the stack itself."""
        result = self._operate("destroy", sink)
        self._embedded().remove()
        return result

    def outputs(self) -> Mapping[str, Any]:
        """Return the outputs of the last run; empty if there was none."""
        return self._embedded().outputs()

    def export(self) -> dict[str, Any]:
        """Return the state, as `pulumi stack export` prints it."""
        return self._embedded().export()

    def _embedded(self) -> Engine:
        project = self.paths.project
        return embedded.Engine(  # loaded here: `choose` does not need it
            project.root,
            self.paths.name,
            backend_dir=project.pulumi,
            passphrase_file=passphrase_file(project),
            worker_environment={"GPUBED_ROOT": str(project.root)},
        )

    def _operate(self, verb: automation.Verb, sink: EventSink, **options: bool) -> Result:
        if self.engine == "embedded":
            result: Result = getattr(self._embedded(), verb)(sink, **options)
            return result
        # The Automation API loads the whole SDK.
        from gpubed.engines import automation

        project = self.paths.project
        if verb != "preview":
            self._embedded().require_free()
        (project.pulumi / "config").mkdir(parents=True, exist_ok=True)
        before = self._files()
        try:
            result = automation.operate(
                verb, self.paths.name, project.root, environment(self.paths), sink, **options
            )
        finally:
            # The CLI creates a missing stack even for a preview. Keep the files of an `up` that
            # runs meanwhile.
            if verb == "preview" and runlock.holder(self.paths.state) is None:
                for created in self._files() - before:
                    created.unlink()
        return result if verb == "destroy" else replace(result, outputs=self.outputs())

    def _files(self) -> set[Path]:
        root, name = self.paths.project.pulumi, self.paths.name
        return {*root.glob(f".pulumi/stacks/*/{name}.json*"), *root.glob(f"config/*.{name}.yaml")}
