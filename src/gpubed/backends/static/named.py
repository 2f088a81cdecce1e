"""The hosts that specifications name, whatever else is wrong with their files.

A cluster is taken down, and its hosts are looked at, while its specification is being changed, or
has lost the only host of a group: only which hosts there are, and the way to them, counts then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from gpubed.backends.static.config import Config, Host
from gpubed.core.errors import PrerequisiteMissing
from gpubed.spec.clusterspec import ClusterSpec
from gpubed.testbeds.reach import Reach

_OF_HOST = ("address", "port")


def options(spec: ClusterSpec) -> Config:
    """Return the options of a specification.

    Raises:
        PrerequisiteMissing: It names another testbed.
    """
    if not isinstance(spec.backend, Config):
        raise PrerequisiteMissing(
            f"the specification of {spec.name} no longer says on which hosts it is",
            "put its former `backend:` back until the cluster is down",
        )
    return spec.backend


def config(reach: Reach) -> Config | None:
    """Return the options of a cluster's specification, else of the one that was applied last.

    None where neither names own hosts, or can be read.

    Raises:
        GpubedError: A kept specification alone counts, and cannot be used.
    """
    found = _config(reach.options) or applied(reach)
    return options(reach.specification) if found is None and reach.is_former else found


def may_have(reach: Reach, place: object) -> bool:
    """Say whether the specification has a host at a place; where it cannot be read, it may.

    Args:
        reach: What the specification says.
        place: Address and port.
    """
    spec = reach.wanted
    if spec is not None and not isinstance(spec.backend, Config):
        return False
    known = config(reach)
    if known is None:
        return True
    return place in {(host.address, host.port) for host, _ in each(known)}


def each(config: Config) -> Iterator[tuple[Host, str]]:
    """Return every host with the name that its node has, or would have."""
    for group, hosts in config.hosts.items():
        yield from ((host, f"{group}-{index}") for index, host in enumerate(hosts))


def wanted(spec: ClusterSpec, config: Config) -> list[tuple[Host, str]]:
    """Return the hosts that a specification makes nodes, each with its node's name."""
    names = {name for group in spec.nodes for name in group.node_names}
    return [(host, name) for host, name in each(config) if name in names]


def heir(reach: Reach, place: object) -> str:
    """Return the node that the specification makes of the host at a place; empty for none.

    Args:
        reach: What the specification says.
        place: Address and port.
    """
    spec = reach.wanted
    if spec is None or not isinstance(spec.backend, Config):
        return ""
    nodes = wanted(spec, spec.backend)
    return next((name for host, name in nodes if (host.address, host.port) == place), "")


def applied(reach: Reach) -> Config | None:
    """Return the options of the specification that was applied last; None where none was kept."""
    return _config(reach.last_options)


def attempted(reach: Reach) -> list[Config]:
    """Return the options of all specifications that may have led to a marked host."""
    return [found for found in map(_config, reach.former_options()) if found]


def nodes(reach: Reach) -> set[str] | None:
    """Return the names of the nodes that are wanted, or were last; None where nobody knows."""
    spec = reach.wanted or reach.last
    if spec is None:
        return None
    return {name for group in spec.nodes for name in group.node_names}


def _config(options: Mapping[str, Any] | None) -> Config | None:
    if options is None:
        return None
    known = {key: value for key, value in options.items() if key in Config.model_fields}
    try:
        return Config.model_validate({**known, "hosts": _hosts(options.get("hosts"))})
    except ValidationError:
        return None  # a host that is misspelt is not one that was taken out


def _hosts(groups: Any) -> Any:
    """Return what leads to each host; a group may have lost its last one."""
    if not isinstance(groups, Mapping):
        return groups or {}
    return {name: [_host(host) for host in hosts or ()] for name, hosts in groups.items()}


def _host(host: Any) -> Any:
    if not isinstance(host, Mapping):
        return host
    return {key: host[key] for key in _OF_HOST if key in host}
