"""What an OpenStack cloud cannot do, and what the backend's own options must agree with."""

from __future__ import annotations

from collections.abc import Iterator

from gpubed.backends.base import Problem
from gpubed.backends.openstack.config import Config
from gpubed.spec import ClusterSpec


def problems(spec: ClusterSpec) -> list[Problem]:
    """Return everything that this backend would have to refuse or to pretend."""
    config = spec.backend
    assert isinstance(config, Config)  # noqa: S101  # the registry chose this backend by it
    return [*_groups(spec, config), *_storage(spec), *_link(spec)]


def _groups(spec: ClusterSpec, config: Config) -> Iterator[Problem]:
    names = [group.name for group in spec.nodes]
    for name in config.groups:
        if name not in names:
            yield Problem(
                ("backend", "groups", name),
                f"there is no node group {name!r}",
                f"groups: {', '.join(names)}",
            )


def _storage(spec: ClusterSpec) -> Iterator[Problem]:
    if spec.storage.shared.provider == "volume":
        yield Problem(
            ("storage", "shared", "provider"),
            "OpenStack mounts no volume on several nodes",
            "auto or nfs",
        )


def _link(spec: ClusterSpec) -> Iterator[Problem]:
    network = spec.networks.experiment
    for key in ("latency", "loss"):
        if network and getattr(network, key):
            yield Problem(
                ("networks", "experiment", key),
                f"OpenStack's networks have no {key} to order",
                "leave it out",
            )
