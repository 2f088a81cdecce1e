"""Paths of a project's folders and files; no other module spells them out.

A *project* holds the user's files (`inventories/`, `.gpubed/`, `Pulumi.yaml`).
The *assets* are gpubed's own files (roles, playbooks, jobs, campaigns, the Pulumi program). In a
checkout, project and assets are the same folder; installed from a wheel, they differ.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import shlex
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpubed.core import files
from gpubed.core.errors import PrerequisiteMissing, UsageError
from gpubed.core.text import ssh_path

_PACKAGE = Path(__file__).resolve().parents[1]
_CHECKOUT = _PACKAGE.parents[1]
_PROGRAM = ("Pulumi.yaml", "stacks/cluster/__main__.py")
_MAIN = re.compile(rb"^main: *['\"]?(\./)?stacks/cluster/?['\"]? *$", re.MULTILINE)
# The Pulumi programs of former versions: the first 64 bits of their SHA-256, and modules that only
# they import.
_FORMER_PROGRAMS = {
    *("029b42348ddd5189", "06b90efbb0fd2670", "0f88da5943768c05", "27018608403f4a36"),
    *("630f77daed017528", "750b4d09734c71f8", "f0b4144abcf70664"),
}
_FORMER_NAMES = (b"gpubed.cluster_drivers", b"gpubed.cluster.drivers")
FROZEN = "GPUBED_SPECIFICATION"


def assets() -> Path:
    """Return the folder with roles, playbooks, jobs and templates."""
    return _CHECKOUT if (_CHECKOUT / "roles").is_dir() else _PACKAGE / "_assets"


def recipes() -> Path:
    """Return the folder with one sub-folder per recipe."""
    return _PACKAGE / "recipes"


def cache() -> Path:
    """Return the user's download cache, shared by all clusters of a machine."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("GPUBED_CACHE") or Path(base) / "gpubed")


def private_cache() -> Path:
    """Create the cache with mode 0700, because nodes write set-uid files there as root.

    The mode of an existing `GPUBED_CACHE` folder is not changed.
    """
    folder = cache()
    ours = not (os.environ.get("GPUBED_CACHE") and folder.exists())
    folder.mkdir(parents=True, exist_ok=True)
    if ours:
        folder.chmod(0o700)
    return folder


def _is_former(program: Path) -> bool:
    content = program.read_bytes()
    if hashlib.sha256(content).hexdigest()[:16] in _FORMER_PROGRAMS:
        return True
    if any(name in content for name in _FORMER_NAMES):
        raise UsageError(
            f"{program} was changed, and is of a former version of gpubed",
            f"mv {shlex.quote(str(program))} {shlex.quote(f'{program}.former')}, then apply your "
            "change to the program that the next command writes",
        )
    return False


class _Below:
    def __init__(self, above: str, name: str) -> None:
        self._above, self._name = above, name

    def __get__(self, paths: object, _: object) -> Path:
        above: Path = getattr(paths, self._above)
        return above / self._name


@dataclass(frozen=True)
class Project:
    """A user's project folder."""

    root: Path

    inventories = _Below("root", "inventories")  # one folder per cluster
    jobs = _Below("root", "jobs")  # the user's own jobs, a folder each
    campaigns = _Below("root", "campaigns")  # the user's own campaigns, a file each
    pulumi = _Below("root", ".gpubed/pulumi")  # the state of all stacks: the file backend's folder

    @classmethod
    def find(cls) -> Project:
        """Locate the project: `GPUBED_ROOT`, else the nearest folder above with Pulumi.yaml."""
        try:
            current = Path.cwd()
        except FileNotFoundError:
            raise UsageError(
                "the current folder was removed", "cd to the folder that has inventories/"
            ) from None
        if named := os.environ.get("GPUBED_ROOT"):
            return cls(Path(named).resolve())
        for folder in (current, *current.parents):
            if (folder / "Pulumi.yaml").is_file():
                return cls(folder)
        return cls(current)

    def require_states(self) -> None:
        """Raise an error if the state is a dangling link, or belongs to another user."""
        states = self.pulumi.parent
        if states.is_symlink() and not states.exists():
            raise UsageError(
                f"{states} is a link to {states.readlink()}, which does not exist",
                "mount the disk that has it: it holds the state of all clusters",
            )
        for place in (states, self.pulumi, self.pulumi / "passphrase"):
            # Outer folders first, because `exists` fails within an unreadable folder.
            if place.exists() and not os.access(place, os.R_OK):
                raise not_ours(place, states)

    @property
    def has_users_program(self) -> bool:
        """Whether `Pulumi.yaml` names the user's own program, which gpubed's engine cannot run."""
        project = self.root / _PROGRAM[0]
        return project.is_file() and not _MAIN.search(project.read_bytes())

    def prepare(self) -> None:
        """Write the Pulumi program for both engines, unless the user has one.

        Raises `UsageError` for a changed program of a former version, or a folder name that OpenSSH
        or Ansible would expand.
        """
        ssh_path(self.root)
        self.pulumi.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in () if self.has_users_program else _PROGRAM:
            target = self.root / name
            if not target.exists() or _is_former(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                files.write(target, (assets() / name).read_bytes())

    def clusters(self) -> list[str]:
        """Return the names of all clusters that have a specification."""
        return sorted(path.parent.name for path in self.inventories.glob("*/cluster.yml"))

    def known(self) -> list[str]:
        """Return the names of all clusters, including those without a specification."""
        kept = {path.name for path in self.pulumi.parent.glob("*") if path.is_dir()}
        return sorted({*self.clusters(), *(kept - {self.pulumi.name})})

    def cluster(self, name: str) -> ClusterPaths:
        """Return the paths of one cluster."""
        return ClusterPaths(self, name)


def not_ours(place: Path, states: Path) -> PrerequisiteMissing:
    """Return the error about a file of another user; its hint takes over the folder `states`."""
    owner = str(place.stat().st_uid)
    with suppress(KeyError):  # the user id has no name on this machine
        owner = place.owner()
    me = getpass.getuser()
    return PrerequisiteMissing(
        f"{place} belongs to {owner}, and {me} has no access to it",
        f"run gpubed as {owner}, or take it over: sudo chown -R {me} {shlex.quote(str(states))}",
    )


@dataclass(frozen=True)
class ClusterPaths:
    """The files of one cluster, each of which may be missing."""

    project: Project
    name: str

    @property
    def inventory(self) -> Path:
        """The Ansible inventory folder."""
        return self.project.inventories / self.name

    @property
    def state(self) -> Path:
        """Everything gpubed keeps about the cluster, outside Pulumi's state."""
        return self.project.root / ".gpubed" / self.name

    spec = _Below("inventory", "cluster.yml")  # the specification that the user writes
    hosts = _Below("inventory", "hosts.yml")
    variables = _Below("inventory", "gpubed.yml")
    """gpubed's variables for all hosts. Not in group_vars, which take precedence over variables of
    the inventory (Ansible's "Understanding variable precedence")."""
    former_variables = _Below("inventory", "group_vars/all/gpubed.yml")
    """The place of `variables` in former versions, where they override files that sort before."""
    record = _Below("state", "cluster.json")  # see `core.record`
    specifications = _Below("state", "specifications")
    """The specifications that created resources on testbeds."""
    frozen = _Below("state", "cluster.yml")  # the specification that a run applies, while it runs
    secrets = _Below("state", "secrets")  # private key and tokens; folder 0700, files 0600
    private_key = _Below("secrets", "id_ed25519")  # the cluster's ed25519 key
    allocation = _Below("state", "allocation.json")
    lease = _Below("state", "lease.json")  # the testbed's last answer about the lease
    watch = _Below("state", "watch.json")  # the memory of `watch`
    watching = _Below("state", "watching")  # the lock of the cluster's only `watch`
    verification = _Below("state", "verification.json")
    jupyterlab_token = _Below("secrets", "jupyterlab_token")
    hub_passwords = _Below("secrets", "hub")  # the researchers' first passwords, a file each
    facts = _Below("state", "facts")  # Ansible's facts, one file per node id
    applied = _Below("state", "applied")  # the roles applied to each node, with their versions
    ssh_config = _Below("state", "ssh_config")
    known_hosts = _Below("state", "known_hosts")  # host keys of all nodes, collected out of band
    runs = _Below("state", "runs")
    checkpoints = _Below("state", "checkpoints")
    """Checkpoints copied before their storage was removed: a folder per storage."""
    collected = _Below("state", "collected.json")  # the copies made of the present storage
    writers = _Below("state", "writers")
    """The locks of runs that write checkpoints, by the names of their folders."""
    campaigns = _Below("state", "campaigns")
    logs = _Below("state", "logs")  # one log per run of a verb

    @property
    def spec_in_use(self) -> Path:
        """The frozen copy of the specification during a run, else the specification."""
        return self.frozen if os.environ.get(FROZEN) == str(self.frozen) else self.spec

    def prepare(self, *, leftovers: bool = False) -> None:
        """Prepare the project for a verb that changes resources, or only removes `leftovers`.

        Raises the errors of `Project.prepare` and `refuse_users_program`; `leftovers` of a cluster
        that is not up may be those of the user's own program.
        """
        if self.allocation.exists() or not leftovers:
            self.refuse_users_program()
        self.project.prepare()

    def refuse_users_program(self) -> None:
        """Raise `UsageError` if the user's own Pulumi program declares the resources."""
        if self.project.has_users_program:
            raise UsageError(
                f"{self.project.root / 'Pulumi.yaml'} runs your own Pulumi program, which declares "
                f"{self.name}; gpubed's engine runs only gpubed's own program",
                "pulumi preview, pulumi up or pulumi destroy: docs/how-to/pulumi.md",
            )

    @property
    def has_stack(self) -> bool:
        """Whether Pulumi has a state of the cluster."""
        return any(self.project.pulumi.glob(f".pulumi/stacks/*/{self.name}.json*"))
