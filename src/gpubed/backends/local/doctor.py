"""Checks of this machine: Docker, images, disk, memory and network."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import requests
from docker.errors import DockerException

from gpubed.backends.local import daemon, environment, image, network, ownership, spec_checks
from gpubed.backends.local.config import RELEASES, Config, Runtime
from gpubed.backends.local.image import PythonImage, node_image
from gpubed.core import record
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths
from gpubed.core.units import format_bytes
from gpubed.spec.clusterspec import ClusterSpec
from gpubed.spec.plan import ClusterPlan, plan
from gpubed.spec.sections import LEAST_MEMORY, NodeGroup
from gpubed.testbeds.base import Finding

_GB = 10**9
# The first cluster needs image, package cache and environment; others only the last.
_FIRST_DISK, _DISK = 12 * _GB, 8 * _GB
_PACKAGES = 12 * _GB  # unpacked and committed, beside the wheels
_KVM = Path("/dev/kvm")


def findings(spec: ClusterSpec | None = None, paths: ClusterPaths | None = None) -> list[Finding]:
    """Return the findings for a cluster; without `spec`, only those of the machine."""
    virtual = spec is not None and Config.of(spec.backend).runtime == "vm"
    try:
        info = daemon.look().info()
    except GpubedError as error:
        return [Finding("local.docker", False, error.message, error.hint)]
    docker = _docker(info)
    if not docker.ok:
        return [docker]
    found = [docker, *_images(info, spec, "vm" if virtual else "container"), _environment()]
    if virtual:
        kvm = "/dev/kvm is there; machines use it if their kernel starts on it"
        none = "there is no /dev/kvm: machines are emulated, and slow"
        found.append(Finding("local.vm.kvm", True, kvm if _KVM.exists() else none))
    if not (spec and paths):
        return [*found, _memory(1, "nodes")]
    planned = plan(spec, network.surroundings(spec, paths))
    found += [memory(planned, paths), *network.subnets(planned, paths)]
    found += [Finding("local.isolation", True, why) for why in spec_checks.warnings(spec)]
    if simulated := sorted({group.simulate.model for group in spec.nodes if group.simulate}):
        message = f"nodes only pretend to have {', '.join(simulated)}: no GPU is tested"
        found.append(Finding("local.gpus.simulated", True, message))
    return found


def _judged(kind: str, ok: bool, message: str, fix: str) -> Finding:
    return Finding(kind, ok, message, None if ok else fix)


def _docker(info: dict[str, Any]) -> Finding:
    address, system = str(daemon.look().api.base_url), info["OperatingSystem"]
    rootless = any("rootless" in option for option in info["SecurityOptions"] or [])
    if address.startswith("http+docker") and not rootless and "Docker Desktop" not in system:
        return Finding("local.docker", True, f"Docker {info['ServerVersion']} answers")
    return Finding(
        "local.docker",
        False,
        f"{system} ({address}{', rootless' if rootless else ''}) hides the nodes' addresses from "
        "this machine",
        "use Docker's ordinary daemon of this machine, on Linux; unset DOCKER_HOST",
    )


def _images(
    info: dict[str, Any], spec: ClusterSpec | None, runtime: Runtime
) -> tuple[Finding, Finding]:
    wanted: list[image.Recipe | PythonImage] = []
    if spec is None:
        wanted = [image.Recipe(NodeGroup.model_fields["image"].default, runtime)]
    else:
        asked = {(group.image, group.simulate is not None) for group in spec.nodes}
        systems = [image.Recipe(n, runtime, s) for n, s in sorted(asked) if n in RELEASES]
        software = spec.recipe if spec.configure else None
        wanted = [node_image(system, software) for system in systems]
    missing = [each for each in wanted if not image.exists(each.tag)]
    found = Finding("local.image", True, "the node image is there")
    for first in missing[:1]:
        system = first.below if isinstance(first, PythonImage) else first
        base, why = system.release.base, image.without_registry(system.release.suite)
        found = Finding("local.image", True, f"the image {first.name} is built by the first `up`")
        if why and not image.exists((system.below or system).tag) and not _registry_has(base):
            message = f"Docker can pull {base} from no registry, and {why}"
            fix = "sudo apt-get install mmdebstrap  # on Debian"
            found = Finding("local.image", False, message, fix)
    packages = sum(isinstance(each, PythonImage) for each in missing)
    needed = (_FIRST_DISK if missing else _DISK) + packages * _PACKAGES
    root = Path(info["DockerRootDir"])
    free = shutil.disk_usage(root).free
    return found, _judged(
        "local.disk",
        free >= needed,
        f"{free / _GB:.0f} GB are free in {root}; a cluster needs about {needed / _GB:.0f} GB",
        "docker system df  # then: docker image prune --all --filter label=gpubed.image",
    )


def _registry_has(base: str) -> bool:
    try:
        daemon.client().images.get_registry_data(base)
    except (DockerException, requests.RequestException):
        return False
    return True


def memory(planned: ClusterPlan, paths: ClusterPaths) -> Finding:
    """Check whether this machine has memory for the nodes that do not run yet."""
    running = set[str]()
    if uuid := record.uuid(paths):
        labels = [f"{ownership.CLUSTER}={uuid}", ownership.NODE]
        with daemon.errors("list the nodes"):
            found = daemon.look().containers.list(filters={"label": labels})
        running = {ownership.labels(container)[ownership.NODE] for container in found}
    missing = sum(node.name not in running for node in planned.nodes)
    if not missing:
        return Finding("local.memory", True, "all nodes are there, and have their memory")
    return _memory(missing, f"{missing} node(s)")


def _memory(nodes: int, users: str) -> Finding:
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    available = next(int(x.split()[1]) * 1024 for x in lines if x.startswith("MemAvailable:"))
    return _judged(
        "local.memory",
        available >= nodes * LEAST_MEMORY,
        f"{available / 2**30:.1f} GiB are available for {users}, "
        f"{format_bytes(LEAST_MEMORY)} each at least",
        "ask for fewer nodes (nodes[].count), or stop other programs",
    )


def _environment() -> Finding:
    reasons = environment.left_out()
    listed = "; ".join(f"{name} {why}" for name, why in sorted(reasons.items()))
    count = len(environment.environment())
    return _judged(
        "local.environment",
        not reasons,
        f"nodes do not get these variables: {listed}"
        if reasons
        else f"nodes get {count} variables",
        "name a proxy or index that nodes reach without a password, or unset the variable",
    )
