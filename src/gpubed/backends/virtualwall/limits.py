"""What of a specification this testbed cannot do, known without asking it."""

from __future__ import annotations

from collections.abc import Iterator

from gpubed.backends.virtualwall import journal, urn
from gpubed.backends.virtualwall.config import Config
from gpubed.core.paths import ClusterPaths
from gpubed.spec.clusterspec import ClusterSpec, Problem, systems
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds.base import Finding


def problems(spec: ClusterSpec) -> list[Problem]:
    """Return everything that is refused."""
    config = spec.backend
    assert isinstance(config, Config)  # noqa: S101
    return [*_hardware(spec, config), *_images(spec, config), *_storage(spec, config)]


def warnings(spec: ClusterSpec) -> list[str]:
    """Return which images are not what they are called, and whether traffic may lack IPv4."""
    return [*_default_images(spec), *_without_ipv4(spec)]


def _without_ipv4(spec: ClusterSpec) -> list[str]:
    """Warn where nodes have their control addresses alone; some testbeds give IPv4 ones."""
    config = spec.backend
    assert isinstance(config, Config)  # noqa: S101
    has_links = spec.networks.experiment and sum(group.count for group in spec.nodes) > 1
    if has_links or config.bastion or not spec.configure:
        return []
    return [
        "without links, traffic takes the control network, and roles need IPv4 there: nodes of the "
        "Virtual Wall have it behind backend.bastion only"
    ]


def _default_images(spec: ClusterSpec) -> list[str]:
    return [
        f"backend.images names no disk image for {name!r}: the testbed's default is loaded, "
        f"whichever that is; roles take {', '.join(systems())}"
        for name in unmapped(spec)
    ]


def unmapped(spec: ClusterSpec) -> list[str]:
    """Return the images of node groups that no disk image of the testbed stands for."""
    config = spec.backend
    assert isinstance(config, Config)  # noqa: S101
    return sorted({group.image for group in spec.nodes} - config.images.keys())


def refusals(plan: ClusterPlan, paths: ClusterPaths) -> list[Finding]:
    """Return why a running cluster cannot become what is planned, before anything of it goes."""
    known, config = journal.load(paths), plan.spec.backend
    assert isinstance(config, Config)  # noqa: S101
    if known is None or known.testbed.project == config.project:
        return []
    name = urn.parse(known.slice_urn, "slice").name
    message = (
        f"slice {name} is one of project {known.testbed.project} until it expires, and names of "
        f"slices are used once: project {config.project} cannot have it"
    )
    fix = f"gpubed down {plan.cluster}, then up, makes a slice of another name"
    return [Finding("virtualwall.project", False, message, fix)]


def _hardware(spec: ClusterSpec, config: Config) -> Iterator[Problem]:
    counts = {group.name: group.count for group in spec.nodes}
    for name, wanted in config.hardware.items():
        path = ("backend", "hardware", name)
        if name not in counts:
            known = ", ".join(counts)
            yield Problem(path, f"there is no node group {name!r}", f"there are: {known}")
        elif wanted.machines and len(wanted.machines) != counts[name]:
            yield Problem(
                (*path, "machines"),
                f"names {len(wanted.machines)} machines for {counts[name]} nodes",
                "one per node",
            )
        if wanted.sliver == "emulab-xen" and any(g.gpus for g in spec.nodes if g.name == name):
            yield Problem((*path, "sliver"), "a virtual machine has no GPU", "allowed: raw-pc")


def _images(spec: ClusterSpec, config: Config) -> Iterator[Problem]:
    wanted = {group.image for group in spec.nodes}
    for name, image in config.images.items():
        path = ("backend", "images", name)
        if name not in wanted:
            yield Problem(path, f"no node group has the image {name!r}", "remove it")
        elif "+image+" not in image and not image.startswith(("http://", "https://")):
            yield Problem(
                path,
                f"{image!r} is no disk image",
                "urn:publicid:IDN+<testbed>+image+<project>:<NAME>",
            )


def _storage(spec: ClusterSpec, config: Config) -> Iterator[Problem]:
    if spec.storage.shared.provider == "volume" and config.shared_folder is None:
        yield Problem(
            ("storage", "shared", "provider"),
            "the testbed mounts no folder of that name by itself",
            "nfs, or name a folder in backend.shared_folder",
        )
