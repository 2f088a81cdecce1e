"""Checks the user's variables beside the inventory: group_vars and host_vars.

Ansible reads them only after nodes have been created, and does not name the file of an error. So
gpubed checks their YAML first. It detects changes by checksums, as variables may hold secrets.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from gpubed.core import yaml_lines
from gpubed.core.errors import UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.spec.clusterspec import SpecError

_GROUPS, _HOSTS = "group_vars", "host_vars"
_FORMER = "all/gpubed.yml"  # written by former versions of gpubed
_READ = {"", ".yml", ".yaml", ".json"}  # Ansible's YAML_FILENAME_EXTENSIONS


def faults(paths: ClusterPaths) -> list[SpecError]:
    """Return the YAML errors in a cluster's group_vars and host_vars, by file and line."""
    found = []
    for path in (*_files(paths.inventory / _GROUPS), *_files(paths.inventory / _HOSTS)):
        try:
            yaml_lines.require_yaml(path)
        except yaml_lines.MalformedYamlError as error:
            found.append(SpecError(str(path), error.line, "", error.message))
        except OSError as error:
            found.append(SpecError(str(path), 1, "", f"cannot be read: {error.strerror}"))
    return found


def require_readable(paths: ClusterPaths) -> None:
    """Raise a `UsageError` with all YAML errors in the user's variables, if any."""
    if found := faults(paths):
        lines = "\n".join(f"  {fault}" for fault in found)
        raise UsageError(f"variables of {paths.name} cannot be read:\n{lines}")


def of_groups(inventory: Path) -> list[Path]:
    """Return the user's files in group_vars."""
    folder = inventory / _GROUPS
    return [path for path in _files(folder) if path != folder / _FORMER]


def of_hosts(inventory: Path) -> dict[str, list[Path]]:
    """Return the files of host_vars by node name."""
    folder, found = inventory / _HOSTS, dict[str, list[Path]]()
    for path in _files(folder):
        top = path.relative_to(folder).parts[0]
        for node in {top, Path(top).stem}:
            found.setdefault(node, []).append(path)
    return found


def checksums(inventory: Path, nodes: Iterable[str]) -> dict[str, str]:
    """Return the checksums of group_vars and of each node's host_vars, by a name for messages.

    Without files, there is a checksum too: files that are added later are a change.
    """
    hosts = of_hosts(inventory)
    return {
        _GROUPS: _checksum(of_groups(inventory), inventory),
        **{f"{node}'s {_HOSTS}": _checksum(hosts.get(node, ()), inventory) for node in nodes},
    }


def _checksum(files: Iterable[Path], inventory: Path) -> str:
    found = hashlib.sha256()
    for path in files:
        try:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            hint = f"chmod u+r {shlex.quote(str(path))}"
            raise UsageError(f"{path} cannot be read: {error.strerror}", hint) from None
        found.update(f"{content}  ".encode() + os.fsencode(path.relative_to(inventory)) + b"\n")
    return found.hexdigest()


def _files(folder: Path) -> list[Path]:
    """Return the files that Ansible reads, without hidden files and editors' backups."""
    hidden = re.compile(r"(^|/)\.|~(/|$)")
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and path.suffix in _READ
        and not hidden.search(str(path.relative_to(folder)))
    )
