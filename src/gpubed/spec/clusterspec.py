"""ClusterSpec: the user's specification, read from `inventories/<cluster>/cluster.yml`.

`read` finds all errors at once, each with its line. Nothing here talks to a testbed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, Literal
from unicodedata import category

from pydantic import (
    BaseModel,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
)

from gpubed.core import reading, wording, yaml_lines
from gpubed.core.errors import GpubedError, UsageError
from gpubed.core.paths import assets
from gpubed.core.text import nearest_name
from gpubed.recipes import recipe
from gpubed.spec import backend_config
from gpubed.spec.backend_config import BackendConfig
from gpubed.spec.sections import (
    NAMES,
    NATS_CLIENT,
    Experiment,
    Firewall,
    Lease,
    Name,
    Networks,
    NodeGroup,
    Packages,
    Python,
    Section,
    Services,
    Storage,
)

_SYSTEM = re.compile(r"[a-z]+-\d+(\.\d+)?")
_FILL_IN = re.compile(r"#\s*fill in: (.+)$")
# Placeholders that importers write for values that the other tool's file lacks, on lines that end
# with `# fill in: WHAT`.
UNFILLED = re.compile(r"\bfill-in\b|192\.0\.2\.0/24")
_RESERVED = {"pulumi"}  # folders of .gpubed that are not clusters
# Sections whose errors do not prevent the validation of other sections.
_INDEPENDENT = {
    "version",
    "owner",
    "services",
    "firewall",
    "lease",
    "may_reboot",
    "python",
    "experiment",
}
# Shell commands, which may have several lines.
_COMMANDS = {("lease", "before_end", "command"), ("lease", "idle", "hook")}


class _Variables(BaseModel):
    """Variables of role base."""

    supported: dict[str, tuple[str, ...]] = Field(alias="__base_supported")


class ClusterSpec(Section):
    """The content of `cluster.yml`."""

    version: Literal[1] = Field(description="version of this format")
    name: Name = Field(description="the folder's name; need not be written")
    owner: str = Field(default="", max_length=200, description="the person responsible for it")
    backend: BackendConfig
    nodes: tuple[NodeGroup, ...] = Field(min_length=1, max_length=10)
    networks: Networks = Networks()
    storage: Storage = Storage()
    recipe: str = "cpu"
    python: Python = Python()
    services: Services = Services()
    firewall: Firewall = Firewall()
    packages: Packages = Packages()
    lease: Lease = Lease()
    may_reboot: bool | None = Field(
        default=None,
        description="whether nodes may reboot when a driver needs it; "
        "by default true, but false on own hosts",
    )
    configure: bool = Field(default=True, description="false leaves bare nodes")
    experiment: Experiment | None = Field(
        default=None, description="the training whose rate `gpubed plan` predicts"
    )

    @property
    def digest(self) -> str:
        """SHA-256 of what the cluster is made of: the content without comments or `experiment`."""
        text = self.model_dump_json(serialize_as_any=True, exclude={"experiment"})
        return hashlib.sha256(text.encode()).hexdigest()

    @field_validator("name")
    @classmethod
    def _not_reserved(cls, name: str) -> str:
        if name in _RESERVED:
            raise ValueError(f"{name!r} is reserved")
        return name

    @field_validator("recipe")
    @classmethod
    def _recipe_exists(cls, name: str) -> str:
        if name not in recipe.names():
            raise ValueError(f"there is no recipe {name!r}; {nearest_name(name, recipe.names())}")
        return name

    @field_validator("nodes")
    @classmethod
    def _group_names_differ(cls, groups: tuple[NodeGroup, ...]) -> tuple[NodeGroup, ...]:
        names = [group.name for group in groups]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two node groups are named {name!r}")
        return groups

    @field_validator("storage")
    @classmethod
    def _fits_nodes_and_networks(cls, storage: Storage, info: ValidationInfo) -> Storage:
        groups, server = info.data.get("nodes", ()), storage.shared.server
        names = [name for group in groups for name in group.node_names]
        if server is not None and names and server not in names:
            raise ValueError(
                f"shared.server: there is no node {server!r}; {nearest_name(server, names)}"
            )
        networks = info.data.get("networks")
        fabric = networks is None or (networks.experiment and networks.experiment.rdma)
        if storage.shared.transport == "rdma" and not fabric:
            raise ValueError("shared.transport: rdma needs networks.experiment.rdma")
        return storage

    @field_validator("services")
    @classmethod
    def _partitions_have_nodes(cls, services: Services, info: ValidationInfo) -> Services:
        groups = [group.name for group in info.data.get("nodes", ())]
        for partition in services.slurm.partitions if services.slurm and groups else ():
            for name in partition.groups:
                if name not in groups:
                    close = nearest_name(name, groups)
                    raise ValueError(f"slurm.partitions: there is no node group {name!r}; {close}")
        return services

    @field_validator("services")
    @classmethod
    def _replicas_have_nodes(cls, services: Services, info: ValidationInfo) -> Services:
        count = sum(group.count for group in info.data.get("nodes", ()))
        if services.streams and count and services.streams.replicas > count:
            raise ValueError(
                f"streams.replicas: {services.streams.replicas} servers need as many nodes, and "
                f"there are {count}; write replicas: 1"
            )
        return services

    @property
    def python_packages(self) -> tuple[str, ...]:
        """Python packages of all jobs beside the recipe's, also those to use the services with."""
        return (*self.python.packages, *([NATS_CLIENT] if self.services.streams else []))

    @property
    def count(self) -> int:
        """The number of nodes in all groups."""
        return sum(group.count for group in self.nodes)


@dataclass(frozen=True)
class Problem:
    """A part of a specification that a testbed cannot satisfy."""

    # Location in the specification, for example ``("nodes", 0, "gpus")``
    path: tuple[str | int, ...]
    message: str
    allowed: str = ""  # what would be allowed, in words


Judge = Callable[[ClusterSpec], Iterable[Problem]]


@dataclass(frozen=True)
class SpecError:
    """An error in a specification."""

    file: str
    line: int  # line number, counted from 1
    path: str  # dotted path of the value
    message: str
    allowed: str = ""  # the allowed values or the nearest name; may be empty

    def __str__(self) -> str:
        tail = f" ({self.allowed})" if self.allowed else ""
        where = f"{self.path}: " if self.path else ""
        return f"{self.file}:{self.line}: {where}{self.message}{tail}"


@cache
def model() -> type[ClusterSpec]:
    """Return `ClusterSpec` with the options of every backend that is installed."""
    configs = [backend_config.named(name) for name in backend_config.names()]
    union = reduce(or_, configs) if len(configs) > 1 else configs[0]
    field: Any = (
        Annotated[union, Field(discriminator="type")] if len(configs) > 1 else union,
        Field(description="where the cluster runs, with that testbed's options"),
    )
    made: type[ClusterSpec] = create_model("ClusterSpec", __base__=ClusterSpec, backend=field)
    return made


def read(path: Path, name: str, judge: Judge) -> tuple[ClusterSpec | None, list[SpecError]]:
    """Read a specification; return it, or None if it is invalid, and all errors in order of lines.

    Args:
        path: The file.
        name: The cluster's name; if empty, that of the file's folder.
        judge: Returns the parts of a specification that the testbed cannot satisfy.
    """
    file = str(path)
    try:
        document = yaml_lines.read(path)
    except FileNotFoundError:
        return None, [SpecError(file, 1, "", "the file does not exist")]
    except OSError as error:
        return None, [SpecError(file, 1, "", f"cannot be read: {error.strerror}")]
    except yaml_lines.MalformedYamlError as error:
        return None, [SpecError(file, error.line, "", error.message)]
    if not isinstance(document.data, dict):
        return None, [SpecError(file, 1, "", "must be a mapping of keys to values")]
    name = name or path.resolve().parent.name
    data = {"name": name, **document.data}
    document.lines.setdefault(("name",), 1)
    try:
        spec = model().model_validate(data)
    except ValidationError as error:
        invalid = wording.placed(error, document)
        found = [_explain(file, document, *one) for one in invalid]
        found += [_placed(file, document, p) for p in _others(invalid, document, data, judge)]
        return None, _in_order(found)
    problems = [_placed(file, document, p) for p in _problems(spec, document, judge)]
    if spec.name != name:
        message = f"is {spec.name!r}, but the folder is named {name!r}"
        problems.append(SpecError(file, document.line(("name",)), "name", message))
    return (None if problems else spec), _in_order(problems)


def _problems(spec: ClusterSpec, document: yaml_lines.Located, judge: Judge) -> list[Problem]:
    """Find problems of a specification that has valid values only."""
    unfilled = [mark for mark in _marked(document) if UNFILLED.search(mark[1])]
    left = [
        Problem(where, f"is still {text!r}, as `gpubed init` wrote it", f"put {wanted} there")
        for where, text, wanted in dict.fromkeys((*_placeholders(spec_backend(spec)), *unfilled))
        if _at(document.data, where) == text
    ]
    own = [
        *_with_controls(document.data),
        *_gpus_without_recipe(spec),
        *_simulations_elsewhere(spec),
        *_parts_for_nobody(spec),
        *_ineffective_lease(spec),
    ]
    judged = list(judge(spec))
    paths = {problem.path for problem in judged}
    return [*judged, *(p for p in _unsupported(spec) if p.path not in paths), *own, *left]


@cache
def _placeholders(backend: str) -> tuple[tuple[yaml_lines.Location, str, str], ...]:
    return _marked(yaml_lines.read(backend_config.template(backend)))


def _marked(document: yaml_lines.Located) -> tuple[tuple[yaml_lines.Location, str, str], ...]:
    """Return place, text and replacement of each value on a line that ends with `# fill in: WHAT`.

    WHAT describes the replacement.
    """
    lines = document.text.splitlines()
    found = [
        (location, _at(document.data, location), _FILL_IN.search(lines[line - 1]))
        for location, line in document.lines.items()
    ]
    return tuple((at, text, mark[1]) for at, text, mark in found if mark and isinstance(text, str))


def _at(data: Any, location: yaml_lines.Location) -> Any:
    for key in location:
        try:
            data = data[key]
        except (LookupError, TypeError):
            return None
    return data


def _others(
    invalid: Iterable[tuple[yaml_lines.Location, Any]],
    document: yaml_lines.Located,
    data: dict[str, Any],
    judge: Judge,
) -> list[Problem]:
    """Drop invalid sections, if others do not depend on them, to find further problems."""
    sections = {path[0] if path else "" for path, _ in invalid}
    if sections & (model().model_fields.keys() - _INDEPENDENT) or "" in sections:
        return []
    rest = {key: value for key, value in data.items() if key not in sections}
    with suppress(ValidationError, GpubedError):  # the testbed may not answer
        found = _problems(model().model_validate({**rest, "version": 1}), document, judge)
        return [p for p in found if p.path[:1] not in {(section,) for section in sections}]
    return []


def _placed(file: str, document: yaml_lines.Located, problem: Problem) -> SpecError:
    path, line = problem.path, document.line(problem.path)
    return SpecError(file, line, _dotted(path), problem.message, problem.allowed)


def name_fault(name: str) -> str:
    """Return why a cluster cannot have a name; empty if it can."""
    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError:
        return NAMES
    return "it is reserved" if name in _RESERVED else ""


def refusal(path: Path, errors: list[SpecError]) -> UsageError:
    """Return an error that lists all errors of a specification."""
    lines = "\n".join(f"  {error}" for error in errors)
    return UsageError(f"{path} has {len(errors)} error(s):\n{lines}")


def spec_backend(spec: ClusterSpec) -> str:
    """Return the name of the backend that a specification names."""
    kind: str = spec.backend.type  # type: ignore[attr-defined]  # every sub-class has it
    return kind


def _with_controls(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[Problem]:
    """Find control characters: a line end would add a line to a configuration file."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _with_controls(key, (*at, key))
            yield from _with_controls(inner, (*at, key))
    elif isinstance(value, str) and at not in _COMMANDS and "Cc" in map(category, value):
        yield Problem(at, "holds a line end or another control character", "leave it out")


def _gpus_without_recipe(spec: ClusterSpec) -> Iterator[Problem]:
    asking = [group.name for group in spec.nodes if group.gpus.per_node]
    if asking and not recipe.load(spec.recipe).gpus.architectures:
        message = f"{spec.recipe!r} uses no GPU, but {asking[0]!r} asks for some"
        yield Problem(("recipe",), message, f"allowed: {', '.join(recipe.with_gpus())}")


def _parts_for_nobody(spec: ClusterSpec) -> Iterator[Problem]:
    """Find GPUs that are cut or shared where nothing gives the parts to jobs."""
    able = spec.services.slurm is not None and spec.backend.lends_nodes and spec.configure
    for index, group in enumerate(spec.nodes):
        if (group.gpus.mig or group.gpus.shards) and not able:
            key = "mig" if group.gpus.mig else "shards"
            message = "parts of GPUs are given to jobs by the Slurm of the cluster, and it has none"
            instead = "set services.slurm: {}, on a testbed that lends nodes"
            yield Problem(("nodes", index, "gpus", key), message, instead)


@cache
def systems() -> tuple[str, ...]:
    """Return the operating systems that roles support, named as in `image` of a node group."""
    variables = reading.file(assets() / "roles/base/vars/main.yml").yaml(_Variables)
    return tuple(
        f"{distribution.lower()}-{release}"
        for distribution, releases in variables.supported.items()
        for release in releases
    )


def _unsupported(spec: ClusterSpec) -> Iterator[Problem]:
    """Find unsupported systems; names that do not look like a system's are accepted."""
    if not (spec.configure and spec.backend.lends_nodes):
        return
    for index, group in enumerate(spec.nodes):
        if _SYSTEM.fullmatch(group.image) and group.image not in systems():
            message = f"is {group.image!r}, which the roles do not support"
            allowed = f"allowed: {', '.join(systems())}; or configure: false, for bare nodes"
            yield Problem(("nodes", index, "image"), message, allowed)


def _simulations_elsewhere(spec: ClusterSpec) -> Iterator[Problem]:
    if spec.backend.simulates:
        return
    able = [name for name in backend_config.names() if backend_config.named(name).simulates]
    message = f"nodes of backend {spec_backend(spec)} have the GPUs that they have"
    allowed = f"leave it out, or rehearse with backend {' or '.join(able)}"
    for index, group in enumerate(spec.nodes):
        if group.simulate:
            yield Problem(("nodes", index, "simulate"), message, allowed)


def _ineffective_lease(spec: ClusterSpec) -> Iterator[Problem]:
    """Find a `lease.idle` or `lease.on_nodes` that has no effect on this testbed."""
    kind, idle = spec_backend(spec), spec.lease.idle
    for key, says in (("idle", "tell what they are used for"), ("on_nodes", "mind their lease")):
        if getattr(spec.lease, key) is None:
            continue
        if not spec.backend.lends_nodes:
            message = f"backend {kind} lends no nodes: its jobs end by themselves"
            yield Problem(("lease", key), message, "leave it out")
        elif not spec.configure:
            message = f"bare nodes do not {says}"
            yield Problem(("lease", key), message, "leave it out, or configure: true")
    able = spec.backend.lends_nodes and spec.configure
    if able and idle and idle.then == "release" and not spec.backend.releases:
        message = f"nodes of backend {kind} are your own: to release them frees nothing"
        yield Problem(("lease", "idle", "then"), message, "allowed: warn")


def _in_order(errors: Iterable[SpecError]) -> list[SpecError]:
    return sorted(errors, key=lambda error: (error.line, error.path))


def _dotted(path: Iterable[str | int]) -> str:
    return ".".join(map(str, path))


def _explain(
    file: str, document: yaml_lines.Located, path: yaml_lines.Location, details: Any
) -> SpecError:
    message, allowed = wording.of(details, model()), ""
    kind, context = details["type"], details.get("ctx", {})
    if kind == "extra_forbidden":
        allowed = wording.suggestion(model(), details["loc"])
    elif kind == "literal_error":
        message, allowed = f"is {details['input']!r}", f"allowed: {context['expected']}"
    elif kind.startswith("union_tag"):
        path, name = (*path, "type"), context.get("tag")
        message = f"unknown backend {name!r}" if name else message
        allowed = nearest_name(str(name), backend_config.types())
    elif kind == "model_type" and path[-1:] == ("simulate",):
        message, allowed = "must be the name of a GPU model", "for example A100-SXM4-80GB"
    elif kind == "string_type" and path == ("recipe",):
        allowed = f"there are: {', '.join(recipe.names())}"
    elif kind == "string_pattern_mismatch" and path[-2:-1] == ("ssh_keys",):
        user = _at(document.data, (*path[:-2], "name"))
        message = f"user {user!r}: {message}" if isinstance(user, str) else message
    return SpecError(file, document.line(path), _dotted(path), message, allowed)
