"""The roles of a plan: their order, variables and versions.

A role declares these in its `meta/gpubed.yml`, so a new role is a new folder. The fingerprint of a
role on a node covers everything that decides its effect: with an equal fingerprint, applying the
role again would change nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, Literal, get_args

from jinja2 import StrictUndefined
from jinja2.nativetypes import NativeEnvironment
from pydantic import BaseModel, ConfigDict, TypeAdapter

import gpubed
from gpubed.configuration import owners_variables
from gpubed.core import reading
from gpubed.core.paths import assets
from gpubed.nodes.allocation import Allocation, Node
from gpubed.recipes import recipe
from gpubed.spec.plan import ClusterPlan

Phase = Literal["base", "accelerator", "fabric", "storage", "runtime", "services", "verify"]
PHASES: tuple[Phase, ...] = get_args(Phase)
Part = Literal[
    "head", "nodes", "machines", "networks", "rates", "storage", "environment", "firewall"
]
Where = Literal["all", "head", "server", "enabled"]
# Templates may return whole models of the specification; variables are plain data.
_PLAIN = TypeAdapter[Any](Any)
_ENVIRONMENT = NativeEnvironment(undefined=StrictUndefined)
_PARTS = TypeAdapter(tuple[Part, ...])
_UNITS = TypeAdapter(dict[str, Where])
_JSON = json.JSONEncoder(sort_keys=True, default=str)
# The roles that serve the shared storage, and that publish the Python environment.
SERVER, ENVIRONMENT = "nfs", "python_env"
# Filters, through which roles call gpubed's own code, and the folder of that code.
_FILTERS, _PACKAGE = "playbooks/filter_plugins", Path(gpubed.__file__).parent
_NOT_APPLIED = {"molecule", "README.md", "__pycache__"}


@cache
def names() -> tuple[str, ...]:
    """Return the names of all roles, sorted."""
    return tuple(sorted(p.parents[1].name for p in assets().glob("roles/*/meta/gpubed.yml")))


class RoleMeta(BaseModel):
    """`meta/gpubed.yml` of a role.

    Attributes:
        phase: The phase in which it runs.
        after: Roles of the same phase that must come first.
        when: Whether the role is active, as a template.
        variables: Its inputs, templates over `spec`, `plan` and `recipe`.
        reads: Parts of the cluster beside the node that its effect depends on, or a template: the
            `head` (addresses, keys and `host_vars`; every role may use its name), all `nodes`, the
            `machines` (limits of the nodes' CPUs and memory), the `networks`, the `rates` of links,
            the identity of the shared `storage`, the published Python `environment`, whether there
            is a `firewall`. A role that reads `nodes` is always applied on all nodes together.
        secrets: Random secrets that must exist on the controller.
        sources: Folders outside the role that it uses, such as those of roles that it calls.
        code: Packages of gpubed that it calls through filters of the playbooks.
        packages: The packages that it installs, a template over its variables, for the forecasts of
            `plan` and `doctor` on own hosts.
        packages_unless: A program; on nodes that have it, the role installs no packages.
        edits: Existing files that it edits, a template over its variables, for the same forecasts.
        units: systemd units that it keeps running and files that it keeps (by absolute path), each
            with its place, or a template: on `all` nodes, the `head`, the `server` of the shared
            storage, or wherever a unit is `enabled`. `status` and `up` check them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    phase: Phase
    after: tuple[str, ...] = ()
    when: bool | str = True
    variables: dict[str, Any] = {}
    reads: tuple[Part, ...] | str = ()
    secrets: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    packages: str = ""
    packages_unless: str = ""
    edits: str = ""
    units: dict[str, Where] | str = {}


@dataclass(frozen=True)
class Unit:
    """A systemd unit that a role keeps running, or a file that it keeps."""

    name: str  # name with suffix, or the file's absolute path
    role: str
    node: str | None = None  # the only node that has it; None for all nodes
    where_enabled: bool = False  # whether it must run only on nodes where it is enabled

    @property
    def is_file(self) -> bool:
        """Whether it is a file instead of a unit."""
        return self.name.startswith("/")


@cache
def meta(role: str) -> RoleMeta:
    """Return a role's `meta/gpubed.yml`."""
    path = assets() / "roles" / role / "meta" / "gpubed.yml"
    return reading.file(path, f"correct {path}").yaml(RoleMeta)


def by_phase(plan: ClusterPlan) -> dict[str, list[str]]:
    """Return the active roles per phase, in execution order."""
    render = _renderer(plan)
    on = {role for role in names() if render(meta(role).when)}
    return {phase: _ordered(role for role in on if meta(role).phase == phase) for phase in PHASES}


def variables(plan: ClusterPlan) -> dict[str, Any]:
    """Return the inputs of all active roles."""
    return {name: value for role in active(plan) for name, value in inputs(plan, role).items()}


def inputs(plan: ClusterPlan, role: str) -> dict[str, Any]:
    """Return the inputs that the plan gives to one role."""
    rendered: dict[str, Any] = _renderer(plan)(meta(role).variables)
    return rendered


def secrets(plan: ClusterPlan) -> set[str]:
    """Return the names of the secrets that the active roles need."""
    return {name for role in active(plan) for name in meta(role).secrets}


def reads(plan: ClusterPlan, role: str) -> tuple[Part, ...]:
    """Return the parts of the cluster that a role's effect depends on; see `RoleMeta.reads`."""
    return _PARTS.validate_python(_renderer(plan)(meta(role).reads))


def units(plan: ClusterPlan) -> list[Unit]:
    """Return the systemd units and files that the active roles keep."""
    render = _renderer(plan)
    found = []
    for role in active(plan):
        for name, where in _UNITS.validate_python(render(meta(role).units)).items():
            node = {"head": plan.nodes[0].name, "server": server(plan)}.get(where)
            found.append(Unit(name, role, node, where == "enabled"))
    return found


def fingerprints(
    plan: ClusterPlan, allocation: Allocation, inventory: Path
) -> dict[str, dict[str, str]]:
    """Return the fingerprint of each active role, by node and role.

    It covers the role's files and variables, the node, the parts in `RoleMeta.reads`, the user's
    group_vars and the node's host_vars.
    """
    head = allocation.head
    everywhere = [
        # Without the controller's proxy, which does not change the result.
        [allocation.cluster, head.name, head.user, bool(head.via)],
        _files_digest(owners_variables.of_groups(inventory), inventory),
        _files_digest((assets() / "playbooks").rglob("*.yml"), assets()),
    ]
    host_vars = owners_variables.of_hosts(inventory)

    def users(node: str) -> str:
        return _files_digest(host_vars.get(node, ()), inventory)

    parts = _parts(plan, allocation, users)
    of_roles = {
        role: _text(_digest([_of_role(plan, role, parts), everywhere])) for role in active(plan)
    }
    found = {}
    for node in allocation.nodes:
        # Equal to `_digest([digest, own])`, but the common parts are serialized only once.
        own = _text([_node(node), users(node.name)])
        found[node.name] = {role: _hash(f"[{text}, {own}]") for role, text in of_roles.items()}
    return found


def active(plan: ClusterPlan) -> list[str]:
    """Return the active roles in execution order."""
    return [role for roles in by_phase(plan).values() for role in roles]


def _ordered(roles: Iterable[str]) -> list[str]:
    chosen = sorted(roles)
    graph = {role: [before for before in meta(role).after if before in chosen] for role in chosen}
    return list(TopologicalSorter(graph).static_order())


_template = cache(_ENVIRONMENT.from_string)


def _renderer(plan: ClusterPlan) -> Any:
    context = {"spec": plan.spec, "plan": plan, "recipe": recipe.content(plan.spec.recipe)}

    def render(value: Any) -> Any:
        if isinstance(value, str):
            return _PLAIN.dump_python(_template(value).render(context), mode="json")
        if isinstance(value, Mapping):
            return {key: render(item) for key, item in value.items()}
        if isinstance(value, list):
            return [render(item) for item in value]
        return value

    return render


def _node(node: Node) -> dict[str, Any]:
    return node.model_dump(mode="json", exclude={"via"})


def _parts(
    plan: ClusterPlan, allocation: Allocation, users: Callable[[str], str]
) -> dict[Part, Any]:
    networks = (allocation.control, allocation.experiment)
    head = allocation.head
    parts: dict[Part, Any] = {
        "head": [_node(head), users(head.name)],
        "nodes": [_node(node) for node in allocation.nodes],
        "machines": [group.machine.model_dump(mode="json") for group in plan.spec.nodes],
        "networks": [net and net.model_dump(mode="json", exclude={"rate_bps"}) for net in networks],
        "rates": [net and net.rate_bps for net in networks],
        "storage": _storage(plan, allocation, users),
        "firewall": plan.spec.firewall.enabled,
    }
    # All inputs of role python_env, which publishes the environment.
    return {**parts, "environment": _of_role(plan, ENVIRONMENT, parts)}


def _storage(plan: ClusterPlan, allocation: Allocation, users: Callable[[str], str]) -> list[Any]:
    """Identify the shared storage: the disk of a node or the testbed's volume."""
    provider = plan.spec.storage.shared.provider
    if provider != "nfs":
        return [provider]
    name = server(plan)
    ids = [node.id for node in allocation.nodes if node.name == name]
    return [provider, name, ids, users(name)]


def server(plan: ClusterPlan) -> str:
    """Return the name of the node that serves the shared storage over NFS."""
    return str(inputs(plan, SERVER)["nfs_server"])


def _of_role(plan: ClusterPlan, role: str, parts: Mapping[Part, Any]) -> list[Any]:
    """Return the part of a role's fingerprint that is the same on all nodes."""
    read = {part: parts[part] for part in reads(plan, role)}
    return [_digest_within(role, assets(), _PACKAGE), inputs(plan, role), read]


@cache  # files of roles do not change while gpubed runs
def _digest_within(role: str, assets: Path, package: Path) -> str:
    sources = _sources(role)
    code = {name for source in sources if (of := _role_in(source)) for name in meta(of).code}
    if code:
        sources.add(_FILTERS)
    return _digest([_folders_digest(sources, assets), _folders_digest(code, package)])


def _folders_digest(folders: Iterable[str], root: Path) -> str:
    files = {path for name in folders for path in (root / name).rglob("*") if path.is_file()}
    return _files_digest((p for p in files if not _NOT_APPLIED & set(p.parts)), root)


def _sources(role: str) -> set[str]:
    """Return the folders of a role and of the roles that it uses, directly or not."""
    found, todo = set(), [f"roles/{role}"]
    while todo:
        source = todo.pop()
        if source not in found:
            found.add(source)
            todo += meta(name).sources if (name := _role_in(source)) else ()
    return found


def _role_in(source: str) -> str:
    """Return the name of the role with this folder; empty for other folders."""
    parent, _, name = source.rpartition("/")
    return name if parent == "roles" else ""


def _files_digest(files: Iterable[Path], root: Path) -> str:
    entries = [
        [str(p.relative_to(root)), hashlib.sha256(p.read_bytes()).hexdigest()] for p in files
    ]
    return _digest(sorted(entries))


def _digest(value: Any) -> str:
    return _hash(_text(value))


def _text(value: Any) -> str:
    return _JSON.encode(value)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
