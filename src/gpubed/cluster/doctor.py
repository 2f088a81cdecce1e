"""Checks the controller's prerequisites, and installs missing ones."""

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
    mitogen, missing = find_spec("ansible_mitogen"), "absent: Ansible's own strategy is used"
    findings = [
        Finding("python", sys.version_info >= _PYTHON, version, "use Python 3.11 or newer"),
        Finding("ssh", bool(ssh), ssh or "ssh is not on PATH", "apt-get install openssh-client"),
        Finding("mitogen", True, "present" if mitogen else missing),
    ]
    if paths is None:
        testbeds = map(registry.backend, backend_config.names())
        return [*findings, _engine(None), *(each for bed in testbeds for each in bed.doctor())]
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
    """Check the machines that should have GPUs: nodes, or hosts that will become nodes."""
    plan = load_plan(paths.spec)
    gpus = {node.name: node for node in plan.nodes if node.gpus}

    def check(session: SSH) -> list[Finding]:
        name = session.node.name
        try:
            with session:
                seen, wanted = host.look(session), gpus[name]
                return host.findings(name, seen, wanted.gpus, cut=bool(wanted.mig))
        except GpubedError as error:
            return [Finding(f"gpu.{name}", False, error.message, error.hint)]

    sessions = [session for session in _sessions(paths, plan) if session.node.name in gpus]
    return [finding for findings in parallel.each(check, sessions) for finding in findings]


def owners_packages(paths: ClusterPaths, plan: ClusterPlan) -> list[Finding]:
    """Report how roles would change packages on own hosts.

    Leaves out hosts that do not answer, which the testbed's own findings name.
    """
    if plan.removes_disks or not plan.spec.configure:
        return []  # the nodes are made for the cluster
    from gpubed.configuration import package_changes  # Ansible's library is slow to import

    nodes = {node.name: node for node in plan.nodes}
    sessions = [session for session in _sessions(paths, plan) if session.node.name in nodes]
    replaced = package_changes.replaced_drivers(
        {each.node.name: each for each in sessions if nodes[each.node.name].gpus}, plan
    )

    def check(session: SSH) -> list[Finding]:
        name = session.node.name
        try:
            with session:
                return package_changes.look(session, plan, nodes[name], replaced.get(name, ""))
        except Unreachable:
            return []
        except GpubedError as error:
            return [Finding(f"packages.{name}", False, error.message, error.hint)]

    return [finding for findings in parallel.each(check, sessions) for finding in findings]


def _sessions(paths: ClusterPaths, plan: ClusterPlan) -> list[SSH]:
    nodes = allocation.load(paths.allocation).nodes if paths.allocation.is_file() else ()
    hosts = registry.bound(plan.backend, paths).hosts(plan.spec)
    names = {node.name for node in nodes}
    return [SSH(node, paths) for node in nodes] + [h for h in hosts if h.node.name not in names]


def repair(paths: ClusterPaths | None, say: Callable[[str], None]) -> None:
    """Install Pulumi's CLI and, for a cluster, the Pulumi plugins that its testbed needs."""
    if shutil.which("pulumi") is None or paths is None:
        try:
            from pulumi import automation  # imports the whole SDK

            command = automation.PulumiCommand.install()
        except Exception as error:  # the installer documents no errors
            raise GpubedError(
                f"Pulumi's CLI could not be installed: {error}",
                "the embedded engine works without it: gpubed up CLUSTER --engine embedded",
            ) from error
        say(f"installed {command.command}; put its folder on PATH")
    if paths:
        registry.backend(spec_backend(load(paths.spec))).repair(say)


def _engine(backend: Backend | None) -> Finding:
    path = shutil.which("pulumi")
    cli = "; ".join([f"Pulumi CLI at {path}", *exposed("cli", backend)])
    return Finding("engine", True, cli if path else "embedded (no CLI on PATH)")


def exposed(engine: EngineName, backend: Backend | None) -> Sequence[str]:
    """Return a warning about other users of the controller, and the remedy for a `backend`.

    Empty for the embedded engine.
    """
    if engine == "embedded":
        return []
    remedy = "where others log in: --engine embedded"
    if backend is not None and backend.engine_required == "cli":
        remedy = "run it on a machine, or in a container or network namespace, of your own"
    return [
        "while Pulumi's CLI runs, other users of this machine can reach its SDK on loopback and "
        f"become you; {remedy} (docs/concepts/security.md)"
    ]
