"""Checks of a specification for what this testbed cannot do, without asking the testbed."""

from __future__ import annotations

from collections.abc import Iterator

from gpubed.backends.virtualwall import journal
from gpubed.backends.virtualwall.config import of
from gpubed.core.paths import ClusterPaths
from gpubed.spec.clusterspec import ClusterSpec, Problem, systems
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds.base import Finding


def problems(spec: ClusterSpec) -> Iterator[Problem]:
    """Find everything that is refused."""
    config = of(spec)
    groups = {group.name: group for group in spec.nodes}
    for name, wanted in config.hardware.items():
        path, group = ("backend", "hardware", name), groups.get(name)
        if group is None:
            known = ", ".join(groups)
            yield Problem(path, f"there is no node group {name!r}", f"there are: {known}")
        elif wanted.machines and len(wanted.machines) != group.count:
            said = f"names {len(wanted.machines)} machines for {group.count} nodes"
            yield Problem((*path, "machines"), said, "one per node")
        if group and group.gpus and wanted.sliver == "emulab-xen":
            yield Problem((*path, "sliver"), "a virtual machine has no GPU", "allowed: raw-pc")
    if spec.storage.shared.provider == "volume" and config.shared_folder is None:
        yield Problem(
            ("storage", "shared", "provider"),
            "the testbed mounts no folder of that name by itself",
            "nfs, or name a folder in backend.shared_folder",
        )


def warnings(spec: ClusterSpec) -> list[str]:
    """Return which images are not what they are called, and whether traffic may lack IPv4."""
    config = of(spec)
    found = [
        f"backend.images names no disk image for {name!r}: the testbed's default is loaded, "
        f"whichever that is; roles take {', '.join(systems())}"
        for name in unmapped(spec)
    ]
    # Nodes then have their control addresses alone; some testbeds give IPv4 ones.
    has_links = spec.networks.experiment and sum(group.count for group in spec.nodes) > 1
    if not has_links and not config.bastion and spec.configure:
        found.append(
            "without links, traffic takes the control network, and roles need IPv4 there: nodes of "
            "the Virtual Wall have it behind backend.bastion only"
        )
    return found


def unmapped(spec: ClusterSpec) -> list[str]:
    """Return the images of node groups that no disk image of the testbed stands for."""
    config = of(spec)
    return sorted({group.image for group in spec.nodes} - config.images.keys())


def refusals(plan: ClusterPlan, paths: ClusterPaths) -> list[Finding]:
    """Return why a running cluster cannot be changed to the plan, before anything is deleted."""
    known, config = journal.load(paths), of(plan.spec)
    if known is None or known.project in ("", config.project):
        return []
    name = known.slice_urn.rpartition("+")[2]
    message = (
        f"slice {name} is one of project {known.project} until it expires, and names of "
        f"slices are used once: project {config.project} cannot have it"
    )
    fix = f"gpubed down {plan.cluster}, then up, makes a slice of another name"
    return [Finding("virtualwall.project", False, message, fix)]
