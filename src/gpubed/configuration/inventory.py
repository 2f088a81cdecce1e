"""Writes an allocation as an inventory of Ansible, and as ssh_config and known_hosts of OpenSSH.

These files work without gpubed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from gpubed.configuration import roles
from gpubed.core import files
from gpubed.core.paths import ClusterPaths
from gpubed.core.text import ssh_path
from gpubed.nodes.allocation import Allocation, Cluster, Hop, Node, known_as, load
from gpubed.nodes.ssh import CONNECT_S
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds import registry

_MARK = "# Written by `gpubed configure {} --files-only`; edit cluster.yml instead.\n"
# libyaml, if PyYAML has it, takes a tenth of the time for a thousand nodes.
_DUMPER = yaml.CSafeDumper if yaml.__with_libyaml__ else yaml.SafeDumper
# Resolved, as the inventory's folder may be a link.
_STATE = "{{ inventory_dir | realpath }}/../../.gpubed/"


class _Untrusted(str):
    """A text of a testbed or a node, such as a host key, in which Ansible expands no templates."""


class _Dumper(_DUMPER):  # type: ignore[misc, valid-type]
    pass


_Dumper.add_representer(
    _Untrusted, lambda dumper, text: dumper.represent_scalar("!unsafe", str(text))
)


def render(cluster: Cluster) -> list[Path]:
    """Write inventory, variables, ssh_config, known_hosts, allocation; return the changed files."""
    for folder in (cluster.paths.facts, cluster.paths.applied):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    texts = _texts(cluster)
    cluster.paths.former_variables.unlink(missing_ok=True)
    return [path for path, text in texts.items() if files.write_if_changed(path, text)]


def render_ssh(paths: ClusterPaths) -> None:
    """Rewrite the ssh_config of a cluster for the present allocation."""
    config = ssh_config(load(paths.allocation), paths)
    files.write_if_changed(paths.ssh_config, _MARK.format(paths.name) + config)


def is_rendered(cluster: Cluster) -> bool:
    """Return whether `render` would change nothing; a killed run may have written some files."""
    return not cluster.paths.former_variables.exists() and all(
        files.has(path, text) for path, text in _texts(cluster).items()
    )


def _texts(cluster: Cluster) -> dict[Path, str]:
    paths, allocation = cluster.paths, cluster.allocation
    if not allocation.nodes:
        return {paths.allocation: allocation.model_dump_json(indent=2) + "\n"}
    versions = roles.fingerprints(cluster.plan, allocation, paths.inventory)
    hosts = {node: {"gpubed_fingerprints": of_roles} for node, of_roles in versions.items()}
    common = {"all": {"vars": variables(cluster.plan, allocation), "hosts": hosts}}
    mark = _MARK.format(cluster.name)
    return {
        paths.allocation: allocation.model_dump_json(indent=2) + "\n",
        paths.hosts: mark + text(allocation),
        paths.variables: mark + _yaml(common),
        paths.known_hosts: known_hosts(allocation),
        paths.ssh_config: mark + ssh_config(allocation, paths),
    }


def text(allocation: Allocation) -> str:
    """Return the inventory as YAML: groups head, workers and one per node group."""
    groups: dict[str, Any] = {"head": {"hosts": {}}, "workers": {"hosts": {}}}
    for node in allocation.nodes:
        groups["head" if node.role == "head" else "workers"]["hosts"][node.name] = {}
        group = groups.setdefault(f"group_{node.group.replace('-', '_')}", {"hosts": {}})
        group["hosts"][node.name] = {}
    machines = {
        node.name: {
            "ansible_host": _untrusted(node.control_address),
            "ansible_port": node.port,
            "ansible_user": _untrusted(node.user),
            "gpubed_node_id": _untrusted(node.id),
        }
        for node in allocation.nodes
    }
    return _yaml({"all": {"hosts": machines, "children": groups}})


def variables(plan: ClusterPlan, allocation: Allocation) -> dict[str, Any]:
    """Return the variables of all hosts: the cluster's facts and every role's inputs."""
    networks = {
        "control": allocation.control.model_dump(mode="json"),
        "experiment": allocation.experiment and allocation.experiment.model_dump(mode="json"),
    }
    return {
        "ansible_ssh_common_args": "-F {{ (gpubed_state_dir ~ '/ssh_config') | quote }}",
        # ansible-runner sets ANSIBLE_HOST_KEY_CHECKING to False, with which mitogen would override
        # the ssh_config.
        "ansible_host_key_checking": True,
        "gpubed_cluster": allocation.cluster,
        "gpubed_uuid": allocation.uuid,
        "gpubed_user": _untrusted(allocation.head.user),
        "gpubed_head": allocation.head.name,
        "gpubed_behind": bool(allocation.head.via),
        "gpubed_one_host": allocation.one_host,
        "gpubed_state_dir": _STATE + allocation.cluster,
        "gpubed_secrets_dir": "{{ gpubed_state_dir }}/secrets",
        "gpubed_environment": registry.backend(allocation.backend).environment(),
        "gpubed_nodes": [
            _untrusted(node.model_dump(mode="json", exclude={"id", "group", "user", "via"}))
            for node in allocation.nodes
        ],
        "gpubed_networks": _untrusted(networks),
        "gpubed_phases": roles.by_phase(plan),
        **roles.variables(plan),
    }


def _untrusted(value: Any) -> Any:
    """Mark the texts in a value of a testbed or a node as `_Untrusted`."""
    if isinstance(value, dict):
        return {key: _untrusted(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_untrusted(inner) for inner in value]
    return _Untrusted(value) if isinstance(value, str) and "{" in value else value


def known_hosts(allocation: Allocation) -> str:
    """Return the host keys of all nodes, by name and by address."""
    lines = []
    for node in allocation.nodes:
        names = f"{node.name},{known_as(node.control_address, node.port)}"
        lines += [f"{names} {key}\n" for key in node.host_keys]
    for chain, name in _hops(allocation).items():
        lines += [f"{name} {key}\n" for key in chain[-1].host_keys]
    return "".join(lines)


def _hops(allocation: Allocation) -> dict[tuple[Hop, ...], str]:
    """Return a name for each hop, by the chain of hops that ends with it."""
    chains = [node.via[: i + 1] for node in allocation.nodes for i in range(len(node.via))]
    return {chain: f"hop-{number}" for number, chain in enumerate(dict.fromkeys(chains), 1)}


def ssh_config(allocation: Allocation, paths: ClusterPaths) -> str:
    """Return an OpenSSH configuration; host keys are always checked.

    Nodes have the aliases of their name, their address and, for the head, `head`.
    """
    hops = _hops(allocation)

    def block(
        names: str, alias: str, address: str, at: Hop | Node, via: tuple[Hop, ...], key: str | None
    ) -> str:
        jump = f"  ProxyJump {hops[via]}\n" if via else ""
        # An SSH agent may hold the user's own key.
        only = "" if key else "  IdentitiesOnly yes\n"
        return (
            f"Host {names}\n"
            f"  HostName {address}\n"
            f"  HostKeyAlias {alias}\n"
            f"  Port {at.port}\n"
            f"  User {at.user}\n"
            f"{jump}"
            f"  IdentityFile {ssh_path(key or paths.private_key)}\n{only}"
        )

    blocks = [
        block(name, name, hop.address, hop, tuple(before), hop.identity)
        for (*before, hop), name in hops.items()
    ]
    for node in allocation.nodes:
        names = f"{node.name} head" if node.role == "head" else node.name
        address = node.control_address
        blocks.append(block(f"{names} {address}", node.name, address, node, node.via, None))
    blocks.append(
        "Host *\n"
        f"  UserKnownHostsFile {ssh_path(paths.known_hosts)}\n"
        "  GlobalKnownHostsFile /dev/null\n"
        "  StrictHostKeyChecking yes\n"
        "  PasswordAuthentication no\n"
        # Also limits the wait for the banner: a paused node accepts connections.
        f"  ConnectTimeout {CONNECT_S:.0f}\n"
        "  ServerAliveInterval 15\n"
    )
    return "\n".join(blocks)


def _yaml(document: Any) -> str:
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
