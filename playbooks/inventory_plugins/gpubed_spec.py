"""Say what a cluster without nodes needs, where Ansible would speak of a source it cannot parse.

Its specification lies in the folder that is the inventory; the hosts beside it are
written once there are nodes. Ansible asks every plugin about a file until one has no
objection, and its own would take the specification for groups of hosts.

Every run loads it, so it also sets the usual umask for what sudo starts: Ansible has no setting
for that.
"""

from pathlib import Path
from typing import Any

from ansible import constants
from ansible.plugins.become import BecomeBase
from ansible.plugins.inventory import BaseInventoryPlugin

_command = BecomeBase._build_success_command


def _with_umask(self: BecomeBase, cmd: str, *args: Any, **options: Any) -> str:
    return str(_command(self, f"umask 022; {cmd}", *args, **options))


BecomeBase._build_success_command = _with_umask


class InventoryModule(BaseInventoryPlugin):
    """Takes `cluster.yml`, adds no host, and ends the run where none can be reached."""

    NAME = "gpubed_spec"

    def verify_file(self, path: str) -> bool:
        """Return whether the source is a specification."""
        return Path(path).name in ("cluster.yml", "cluster.yaml")

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> None:
        """Look whether the nodes of the specification are known.

        Raises:
            SystemExit: They are not. An AnsibleError would have the next plugin try.
        """
        super().parse(inventory, loader, path, cache)
        folder = Path(path).resolve().parent
        known = (folder / "hosts.yml", folder.parents[1] / ".gpubed" / folder.name / "ssh_config")
        strict = constants.config.get_config_value("INVENTORY_ANY_UNPARSED_IS_FAILED")
        if strict and not all(file.is_file() for file in known):
            self.display.error(
                f"nothing is known of nodes of cluster {folder.name}: 'gpubed up {folder.name}'"
                f" makes them, 'gpubed configure {folder.name} --files-only' writes down"
                " those that there are"
            )
            raise SystemExit(1)
