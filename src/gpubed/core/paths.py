"""Where things are. The only module that knows the folders of a project.

A *project* holds the user's files (`inventories/`, `.gpubed/`, `Pulumi.yaml`).
The *assets* are what gpubed brings (roles, playbooks, jobs, campaigns, the program). In a
checkout both are the same folder; installed from a wheel they differ.
"""

from __future__ import annotations

import errno
import getpass
import hashlib
import os
import shlex
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpubed.core import files
from gpubed.core.command_words import ssh_path
from gpubed.core.errors import PrerequisiteMissing, UsageError, in_the_way

_PACKAGE = Path(__file__).resolve().parents[1]
_CHECKOUT = _PACKAGE.parents[1]
_PROGRAM = ("Pulumi.yaml", "stacks/cluster/__main__.py")
# Programs that former versions wrote: SHA-256, the first 64 bits.
_FORMER = frozenset(
    {
        "029b42348ddd5189",
        "0f88da5943768c05",
        "27018608403f4a36",
        "630f77daed017528",
        "f0b4144abcf70664",
    }
)
_FORMER_NAME = b"gpubed.cluster_drivers"


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
    """Make the cache where it is not, and let nobody but its user into it.

    Nodes write to it, as root: what is set-uid there would make root of who runs it here. A
    folder of the user's choice that exists stays as it is.
    """
    folder = cache()
    ours = not (os.environ.get("GPUBED_CACHE") and folder.exists())
    folder.mkdir(parents=True, exist_ok=True)
    if ours:
        folder.chmod(0o700)
    return folder


def _is_former(program: Path) -> bool:
    """Say whether a former version wrote a program; refuse one that was changed since."""
    content = program.read_bytes()
    if hashlib.sha256(content).hexdigest()[:16] in _FORMER:
        return True
    if _FORMER_NAME in content:
        raise UsageError(
            f"{program} was changed, and is of a former version of gpubed",
            f"mv {shlex.quote(str(program))} {shlex.quote(f'{program}.former')}, then bring your "
            "change into the one that the next command writes",
        )
    return False


@dataclass(frozen=True)
class Project:
    """A user's project folder."""

    root: Path

    @classmethod
    def find(cls) -> Project:
        """Locate the project: `GPUBED_ROOT`, else the nearest folder above with Pulumi.yaml.

        Raises:
            UsageError: The current folder was removed.
        """
        try:
            here = Path.cwd()
        except FileNotFoundError:
            raise UsageError(
                "the current folder was removed", "cd to the folder that has inventories/"
            ) from None
        if named := os.environ.get("GPUBED_ROOT"):
            return cls(Path(named).resolve())
        for folder in (here, *here.parents):
            if (folder / "Pulumi.yaml").is_file():
                return cls(folder)
        return cls(here)

    def require_states(self) -> None:
        """Refuse to go on where what is known of all clusters is out of reach.

        Raises:
            UsageError: Its folder is a link that leads nowhere.
            PrerequisiteMissing: It is another user's.
        """
        states = self.pulumi.parent
        if states.is_symlink() and not states.exists():
            raise UsageError(
                f"{states} leads to {states.readlink()}, which is not there",
                "mount the disk that has it: what the clusters are is known there alone",
            )
        for place in (states, self.pulumi, self.pulumi / "passphrase"):
            # In this order: what is in a folder of another's cannot even be looked for.
            if place.exists() and not os.access(place, os.R_OK):
                raise not_ours(place, states)

    def prepare(self) -> None:
        """Put the program where both engines look for it.

        What is there is kept, unless a former version wrote it.

        Raises:
            UsageError: A program of a former version was changed by hand, or the folder's name
                holds what OpenSSH or Ansible would expand.
        """
        ssh_path(self.root)
        self.pulumi.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in _PROGRAM:
            target = self.root / name
            if not target.exists() or _is_former(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                files.write(target, (assets() / name).read_bytes())

    @property
    def inventories(self) -> Path:
        """One folder per cluster."""
        return self.root / "inventories"

    @property
    def jobs(self) -> Path:
        """The user's own jobs, a folder each."""
        return self.root / "jobs"

    @property
    def campaigns(self) -> Path:
        """The user's own campaigns, a file each."""
        return self.root / "campaigns"

    @property
    def pulumi(self) -> Path:
        """The state of all stacks: the file backend's folder."""
        return self.root / ".gpubed" / "pulumi"

    def clusters(self) -> list[str]:
        """Return the names of all clusters that have a specification."""
        return sorted(path.parent.name for path in self.inventories.glob("*/cluster.yml"))

    def known(self) -> list[str]:
        """Return the names of all clusters, also of those whose specification is gone."""
        kept = {path.name for path in self.pulumi.parent.glob("*") if path.is_dir()}
        return sorted({*self.clusters(), *(kept - {self.pulumi.name})})

    def cluster(self, name: str) -> ClusterPaths:
        """Return the paths of one cluster."""
        return ClusterPaths(self, name)


def not_ours(place: Path, states: Path) -> PrerequisiteMissing:
    """Return what to tell where somebody else has what is known of the clusters.

    Args:
        place: What cannot be used.
        states: The folder of all that is known; a part of it alone would be of no use.
    """
    owner = str(place.stat().st_uid)
    with suppress(KeyError):  # a user of another machine
        owner = place.owner()
    me = getpass.getuser()
    return PrerequisiteMissing(
        f"{place} belongs to {owner}, and is not for {me} to use",
        f"run gpubed as {owner}, or have the whole given to you: sudo chown -R {me} "
        f"{shlex.quote(str(states))}",
    )


@dataclass(frozen=True)
class ClusterPaths:
    """Where one cluster keeps its files."""

    project: Project
    name: str

    @property
    def spec(self) -> Path:
        """The specification that the user writes."""
        return self.inventory / "cluster.yml"

    @property
    def inventory(self) -> Path:
        """The Ansible inventory folder."""
        return self.project.inventories / self.name

    @property
    def hosts(self) -> Path:
        """The hosts and groups of the inventory."""
        return self.inventory / "hosts.yml"

    @property
    def variables(self) -> Path:
        """The variables that gpubed gives to all hosts.

        A file of the inventory itself, and not of its group_vars: these win, whatever
        they are called (Ansible's "Understanding variable precedence").
        """
        return self.inventory / "gpubed.yml"

    @property
    def former_variables(self) -> Path:
        """Where they were before; there they would win over files that sort before them."""
        return self.inventory / "group_vars" / "all" / "gpubed.yml"

    @property
    def state(self) -> Path:
        """Everything gpubed keeps about the cluster, outside Pulumi's state."""
        return self.project.root / ".gpubed" / self.name

    @property
    def uuid(self) -> Path:
        """The cluster's UUID, which outlives its state; may be missing."""
        return self.state / "uuid"

    @property
    def testbeds(self) -> Path:
        """The testbeds that the cluster was made on, a file each; they outlive its state, too."""
        return self.state / "testbeds"

    @property
    def without(self) -> Path:
        """The own hosts that a `down` goes without; there while it runs."""
        return self.state / "without.json"

    @property
    def was_made(self) -> bool:
        """Whether something of the cluster may be on a testbed: it has a state, or a UUID."""
        return self.uuid.exists() or self.has_stack

    @property
    def has_stack(self) -> bool:
        """Whether Pulumi has a state of the cluster."""
        return any(self.project.pulumi.glob(f".pulumi/stacks/*/{self.name}.json*"))

    @property
    def secrets(self) -> Path:
        """Private key and tokens; the folder is 0700, files are 0600."""
        return self.state / "secrets"

    @property
    def private_key(self) -> Path:
        """The cluster's ed25519 key."""
        return self.secrets / "id_ed25519"

    @property
    def allocation(self) -> Path:
        """What the testbed gave."""
        return self.state / "allocation.json"

    @property
    def served(self) -> Path:
        """Which node serves the shared storage from its own disk; missing where none does."""
        return self.state / "served.json"

    @property
    def door(self) -> Path:
        """At which port JupyterLab was set up last; missing where it was not."""
        return self.state / "door.json"

    @property
    def left_out(self) -> Path:
        """Nodes that a Pulumi plugin could not make, and why; may be missing."""
        return self.state / "left_out.json"

    @property
    def lease(self) -> Path:
        """What the testbed last said about the lease."""
        return self.state / "lease.json"

    @property
    def unfinished(self) -> Path:
        """There while an `up` changes the cluster, and after one that did not come to its end."""
        return self.state / "unfinished"

    @property
    def removing(self) -> Path:
        """There while a `down` removes the cluster, and after one that did not come to its end.

        It says whose that is; empty of a person's.
        """
        return self.state / "removing"

    @property
    def watch(self) -> Path:
        """What `watch` knows of its former looks; may be missing."""
        return self.state / "watch.json"

    @property
    def watching(self) -> Path:
        """The lock of the one `watch` that a cluster has."""
        return self.state / "watching"

    @property
    def verification(self) -> Path:
        """The last verification."""
        return self.state / "verification.json"

    @property
    def jupyterlab_token(self) -> Path:
        """What JupyterLab asks for."""
        return self.secrets / "jupyterlab_token"

    @property
    def jupyterlab_certificate(self) -> Path:
        """Who vouches for JupyterLab's certificate."""
        return self.state / "jupyterlab.crt"

    @property
    def facts(self) -> Path:
        """What the nodes said about themselves, one file per node id."""
        return self.state / "facts"

    @property
    def applied(self) -> Path:
        """Which role, in which version, was applied to which node."""
        return self.state / "applied"

    @property
    def ssh_config(self) -> Path:
        """OpenSSH configuration of the cluster."""
        return self.state / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        """Host keys of all nodes, collected out of band."""
        return self.state / "known_hosts"

    @property
    def runs(self) -> Path:
        """One folder per job run."""
        return self.state / "runs"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints that were collected before their storage went: a folder per storage."""
        return self.state / "checkpoints"

    @property
    def collected(self) -> Path:
        """What was collected of the present storage; may be missing."""
        return self.state / "collected.json"

    @property
    def writers(self) -> Path:
        """The locks of who writes checkpoints, by their folders' names."""
        return self.state / "writers"

    @property
    def campaigns(self) -> Path:
        """One folder per campaign of `bench`."""
        return self.state / "campaigns"

    @property
    def reshaped(self) -> Path:
        """There while links may have another rate than the declared one."""
        return self.state / "reshaped"

    def require_files(self) -> None:
        """Refuse what has the name of a file of the cluster and is none.

        Asked before anything changes: else a step half-way would find out, or Ansible.

        Raises:
            PrerequisiteMissing: A folder has; says how it is moved away.
        """
        for path in (
            *(self.hosts, self.variables, self.uuid, self.without, self.allocation, self.served),
            *(self.left_out, self.lease, self.unfinished, self.removing, self.watch),
            *(self.verification, self.jupyterlab_certificate, self.ssh_config, self.known_hosts),
            *(self.reshaped, self.collected),
        ):
            if path.is_dir():
                raise in_the_way(IsADirectoryError(errno.EISDIR, "Is a directory", str(path)))

    @property
    def logs(self) -> Path:
        """One log per verb that did something."""
        return self.state / "logs"
