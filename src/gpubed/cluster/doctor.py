"""Checks the controller's prerequisites, and installs those that are missing."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec

from gpubed.core import parallel
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths
from gpubed.engines.stack import EngineName
from gpubed.hardware import host
from gpubed.nodes import allocation
from gpubed.nodes.ssh import SSH, Unreachable
from gpubed.spec import backend_config
from gpubed.spec.clusterspec import spec_backend
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds import registry
from gpubed.testbeds.base import Backend, Finding
from gpubed.testbeds.specification import load, load_plan

_PYTHON = (3, 11)


def examine(paths: ClusterPaths | None) -> list[Finding]:
    """Check this machine and, for a cluster, its testbed."""
    version, ssh = ".".join(map(str, sys.version_info[:3])), shutil.which("ssh")
    strategy = (
        "present" if find_spec("ansible_mitogen") else "absent: Ansible's own strategy is used"
    )
    findings = [
        Finding("python", sys.version_info >= _PYTHON, version, "use Python 3.11 or newer"),
        Finding(
            "ssh", ssh is not None, ssh or "ssh is not on PATH", "apt-get install openssh-client"
        ),
        Finding("mitogen", True, strategy),
    ]
    if paths is None:
        own = [one for name in backend_config.names() for one in registry.backend(name).doctor()]
        return [*findings, _engine(None), *own]
    spec = load(paths.spec)
    testbed = registry.bound(spec_backend(spec), paths)
    return [
        *findings,
        _engine(testbed.backend),
        *testbed.doctor(spec),
        *gpu_hosts(paths),
        *owners_packages(paths, load_plan(paths.spec)),
    ]


def gpu_hosts(paths: ClusterPaths) -> list[Finding]:
    """Check the machines that are to have GPUs: nodes, or hosts that will become nodes."""
    plan = load_plan(paths.spec)
    asked = {node.name: node.gpus for node in plan.nodes if node.gpus}
    sessions = _sessions(paths, plan)

    def look(session: SSH) -> list[Finding]:
        name = session.node.name
        try:
            with session:
                return host.findings(name, host.look(session), asked[name])
        except GpubedError as error:
            return [Finding(f"gpu.{name}", False, error.message, error.hint)]

    found = parallel.each(look, (each for each in sessions if each.node.name in asked))
    return [finding for findings in found for finding in findings]


def owners_packages(paths: ClusterPaths, plan: ClusterPlan) -> list[Finding]:
    """Report how roles would change packages on own hosts.

    Hosts that do not answer are left out: the testbed's own findings name them.
    """
    if plan.removes_disks or not plan.spec.configure:
        return []  # the nodes are made for the cluster
    from gpubed.configuration import package_changes  # Ansible's library is slow to import

    nodes = {node.name: node for node in plan.nodes}
    sessions = [session for session in _sessions(paths, plan) if session.node.name in nodes]
    replaced = package_changes.replaced_drivers(
        {one.node.name: one for one in sessions if nodes[one.node.name].gpus}, plan
    )

    def look(session: SSH) -> list[Finding]:
        name = session.node.name
        try:
            with session:
                return package_changes.look(session, plan, nodes[name], replaced.get(name, ""))
        except Unreachable:
            return []
        except GpubedError as error:
            return [Finding(f"packages.{name}", False, error.message, error.hint)]

    return [finding for findings in parallel.each(look, sessions) for finding in findings]


def _sessions(paths: ClusterPaths, plan: ClusterPlan) -> list[SSH]:
    there = allocation.load(paths.allocation).nodes if paths.allocation.is_file() else ()
    hosts = registry.bound(plan.backend, paths).hosts(plan.spec)
    known = {node.name for node in there}
    return [SSH(node, paths) for node in there] + [h for h in hosts if h.node.name not in known]


def repair(paths: ClusterPaths | None, say: Callable[[str], None]) -> None:
    """Install Pulumi's CLI and, for a cluster, the Pulumi plugins that its testbed needs."""
    if shutil.which("pulumi") is None or paths is None:
        try:
            # Imports the whole SDK, which only this needs.
            from pulumi import automation

            command = automation.PulumiCommand.install()
        except Exception as error:  # the installer raises whatever its download raised
            raise GpubedError(
                f"Pulumi's CLI could not be installed: {error}",
                "the embedded engine works without it: gpubed up CLUSTER --engine embedded",
            ) from error
        say(f"installed {command.command}; put its folder on PATH")
    if paths:
        registry.backend(spec_backend(load(paths.spec))).repair(say)


def _engine(backend: Backend | None) -> Finding:
    path = shutil.which("pulumi")
    if path is None:
        return Finding("engine", True, "embedded (no CLI on PATH)")
    words = [f"Pulumi CLI at {path}", *exposed("cli", backend)]
    return Finding("engine", True, "; ".join(words))


def exposed(engine: EngineName, backend: Backend | None) -> Sequence[str]:
    """Say what other users of the controller can reach while Pulumi works, and what helps.

    Empty for the embedded engine; without a cluster's `backend`, for any.
    """
    if engine == "embedded":
        return []
    instead = "where others log in: --engine embedded"
    if backend is not None and backend.engine_required == "cli":
        instead = (
            "run it where nobody else logs in, or in a container or network namespace of its own"
        )
    return [
        "while Pulumi's CLI runs, other users of this machine can reach its SDK on loopback and "
        f"become you; {instead} (docs/concepts/security.md)"
    ]
