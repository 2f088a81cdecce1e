"""The variables that an owner puts beside the inventory: group_vars and host_vars.

Ansible reads them first once nodes have been made, and names no file of a fault. So they are read
before anything begins: their form alone, since what they say is between the owner and the roles.
"""

from __future__ import annotations

from pathlib import Path

from gpubed.core import located
from gpubed.core.errors import UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.spec.clusterspec import SpecError

_FOLDERS = ("group_vars", "host_vars")
_READ = {"", ".yml", ".yaml", ".json"}  # Ansible's YAML_FILENAME_EXTENSIONS


def faults(paths: ClusterPaths) -> list[SpecError]:
    """Return what is no YAML in a cluster's group_vars and host_vars, by file and line."""
    found = []
    for path in _files(paths.inventory):
        try:
            located.require_yaml(path)
        except located.MalformedYamlError as error:
            found.append(SpecError(str(path), error.line, "", error.message))
        except OSError as error:
            found.append(SpecError(str(path), 1, "", f"cannot be read: {error.strerror}"))
    return found


def require_readable(paths: ClusterPaths) -> None:
    """Refuse to begin what Ansible could not end.

    Raises:
        UsageError: A file is no YAML; all of them are in the message.
    """
    if found := faults(paths):
        lines = "\n".join(f"  {fault}" for fault in found)
        raise UsageError(f"variables of {paths.name} cannot be read:\n{lines}")


def _files(inventory: Path) -> list[Path]:
    """Return the files that Ansible reads: neither hidden ones nor an editor's copies."""
    return sorted(
        path
        for folder in _FOLDERS
        for path in (inventory / folder).rglob("*")
        if path.is_file() and path.suffix in _READ and not _is_left_out(path, inventory)
    )


def _is_left_out(path: Path, inventory: Path) -> bool:
    parts = path.relative_to(inventory).parts
    return any(part.startswith(".") or part.endswith("~") for part in parts)
