"""What a specification must say about hosts that somebody else installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpubed.backends.static.config import Config
from gpubed.spec.clusterspec import ClusterSpec, Problem

_HOSTS = ("backend", "hosts")


def problems(spec: ClusterSpec) -> list[Problem]:
    """Return what is missing or contradicts itself."""
    config: Any = spec.backend
    return [*_groups(spec, config), *_networks(spec), *_addresses(spec, config)]


def _groups(spec: ClusterSpec, config: Config) -> Iterator[Problem]:
    wanted = {group.name: group.count for group in spec.nodes}
    for name, count in wanted.items():
        here = len(config.hosts.get(name, ()))
        if here < count:
            message = f"{name} has {here} hosts for {count} nodes"
            yield Problem((*_HOSTS, name) if here else _HOSTS, message, f"{count} hosts")
    for name in config.hosts.keys() - wanted.keys():
        yield Problem((*_HOSTS, name), f"there is no node group {name!r}", ", ".join(wanted))


def _networks(spec: ClusterSpec) -> Iterator[Problem]:
    control, experiment = spec.networks.control, spec.networks.experiment
    if experiment is None:
        if spec.count > 1 and control.subnet is None:
            yield Problem(
                ("networks",),
                "control.subnet is missing: with no experiment network, jobs communicate over it",
                "the subnet of the hosts' addresses",
            )
        return
    if experiment.subnet is None:
        yield Problem(("networks", "experiment"), "subnet is missing", "that of the hosts")
    if experiment.latency or experiment.loss:
        yield Problem(("networks", "experiment"), "own hosts' latency and loss are as they are")


def _addresses(spec: ClusterSpec, config: Config) -> Iterator[Problem]:
    network, seen = spec.networks.experiment, set()
    for group, hosts in config.hosts.items():
        for index, host in enumerate(hosts):
            where = (*_HOSTS, group, index)
            if (host.address, host.port) in seen:
                yield Problem((*where, "address"), f"{host.address} is there twice")
            seen.add((host.address, host.port))
            if network is None or network.subnet is None:
                continue
            if host.experiment_address is None:
                yield Problem(where, "experiment_address is missing", f"one of {network.subnet}")
            elif host.experiment_address not in network.subnet:
                message = f"{host.experiment_address} is not in {network.subnet}"
                yield Problem((*where, "experiment_address"), message)
