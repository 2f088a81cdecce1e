"""What must be in place on the controller, and how to repair what is not."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec

from gpubed.cluster import exposure
from gpubed.core import parallel
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths
from gpubed.hardware import host
from gpubed.nodes import allocation
from gpubed.nodes.ssh import SSH
from gpubed.spec import backend_config
from gpubed.spec.clusterspec import spec_backend
from gpubed.testbeds import registry, specification
from gpubed.testbeds.base import Backend, Finding
from gpubed.testbeds.specification import load

_PYTHON = (3, 11)


def examine(paths: ClusterPaths | None) -> list[Finding]:
    """Look at this machine and, for a cluster, at its testbed."""
    findings = [_python(), _program("ssh", "apt-get install openssh-client"), _mitogen()]
    if paths is None:
        findings.append(_engine(None))
        for name in backend_config.names():
            findings += registry.backend(name).doctor()
        return findings
    spec = load(paths.spec)
    testbed = registry.bound(spec_backend(spec), paths)
    findings += [_engine(testbed.backend), *testbed.doctor(spec)]
    return findings + gpu_hosts(paths)


def gpu_hosts(paths: ClusterPaths) -> list[Finding]:
    """Look at the machines that are to have GPUs: the nodes, or what will be nodes."""
    plan = specification.load_plan(paths.spec)
    asked = {node.name: node.gpus for node in plan.nodes if node.gpus}
    if paths.allocation.is_file():
        sessions = [SSH(node, paths) for node in allocation.load(paths.allocation).nodes]
    else:
        sessions = registry.bound(plan.backend, paths).hosts(plan.spec)

    def look(session: SSH) -> list[Finding]:
        name = session.node.name
        try:
            with session:
                return host.findings(name, host.look(session), asked[name])
        except GpubedError as error:
            return [Finding(f"gpu.{name}", False, error.message, error.hint)]

    found = parallel.each(look, (each for each in sessions if each.node.name in asked))
    return [finding for findings in found for finding in findings]


def repair(paths: ClusterPaths | None, say: Callable[[str], None]) -> None:
    """Install Pulumi's CLI, and for a cluster what its testbed needs of Pulumi besides.

    Raises:
        GpubedError: A download failed.
    """
    if shutil.which("pulumi") is None or paths is None:
        _install_cli(say)
    if paths:
        registry.backend(spec_backend(load(paths.spec))).repair(say)


def _install_cli(say: Callable[[str], None]) -> None:
    try:
        # Loads the whole SDK, which nothing else here needs.
        from pulumi import automation

        command = automation.PulumiCommand.install()
    except Exception as error:  # the installer raises whatever its download raised
        raise GpubedError(
            f"Pulumi's CLI could not be installed: {error}",
            "the embedded engine works without it: gpubed up CLUSTER --engine embedded",
        ) from error
    say(f"installed {command.command}; put its folder on PATH")


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("python", sys.version_info >= _PYTHON, version, "use Python 3.11 or newer")


def _program(name: str, fix: str) -> Finding:
    path = shutil.which(name)
    return Finding(name, path is not None, path or f"{name} is not on PATH", fix)


def _mitogen() -> Finding:
    message = (
        "present" if find_spec("ansible_mitogen") else "absent: Ansible's own strategy is used"
    )
    return Finding("mitogen", True, message)


def _engine(backend: Backend | None) -> Finding:
    path = shutil.which("pulumi")
    if path is None:
        return Finding("engine", True, "embedded (no CLI on PATH)")
    words = [f"Pulumi CLI at {path}", *exposure.warnings("cli", backend)]
    return Finding("engine", True, "; ".join(words))
