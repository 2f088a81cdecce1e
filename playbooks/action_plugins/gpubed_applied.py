"""Record on the controller which version of a role a node now has.

The fingerprint comes from the inventory (`gpubed_fingerprints`), so it names
the role and variables that `gpubed configure --files-only` saw; an edit made after that is
noticed by gpubed as a difference. Nothing is touched on the node.

A role also says where it begins to change what services read. When the run ends before
the role does, Ansible forgets which handlers it was to call; the next run finds the role
begun and not done, and the task is "changed": it notifies the handlers once more.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

_BEGUN, _AGAIN = "begun", "begun-again"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock: many hosts are recorded at the same time."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _read(record: Path) -> dict[str, str]:
    try:
        content = json.loads(record.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    found = content.items() if isinstance(content, dict) else ()
    return {role: version for role, version in found if isinstance(version, str)}


def _replace(record: Path, content: dict[str, str]) -> None:
    handle, draft = tempfile.mkstemp(dir=record.parent, prefix=f".{record.name}.")
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        json.dump(content, stream, indent=2, sort_keys=True)
        stream.write("\n")
    Path(draft).replace(record)


def record_role(folder: Path, node_id: str, role: str, fingerprint: str) -> None:
    """Write `role: fingerprint` into the node's record, keeping other roles.

    Args:
        folder: The cluster's `applied` folder.
        node_id: The node's id; a replaced node has a new one, hence no record.
        role: The role's name.
        fingerprint: What `gpubed configure --files-only` computed for the role.
    """
    record = folder / f"{node_id}.json"
    with _locked(folder):
        content = _read(record)
        if content.get(role) != fingerprint:
            _replace(record, {**content, role: fingerprint})


def record_begin(folder: Path, node_id: str, role: str, run: str) -> bool:
    """Write that a run has begun with a role; it may say so several times.

    Args:
        folder: The cluster's `applied` folder.
        node_id: The node's id.
        role: The role's name.
        run: What tells this run from others.

    Returns:
        Whether an earlier run began with the role and did not come to its end.
    """
    record = folder / f"{node_id}.json"
    with _locked(folder):
        content = _read(record)
        word, _, by = content.get(role, "").partition(" ")
        interrupted = word == _AGAIN or (word == _BEGUN and by != run)
        entry = f"{_AGAIN if interrupted else _BEGUN} {run}"
        if content.get(role) != entry:
            _replace(record, {**content, role: entry})
    return interrupted


class ActionModule(ActionBase):
    """`gpubed_applied: {role: NAME, state: begun | done}`; idle in check mode."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False
    TRANSFERS_FILES = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Record the role given as argument for the current host; by default, that it is done."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        _, arguments = self.validate_argument_spec(
            {
                "role": {"type": "str", "required": True},
                "state": {"type": "str", "choices": ["begun", "done"], "default": "done"},
            }
        )
        role = arguments["role"]
        fingerprint = self._variable(variables, "gpubed_fingerprints").get(role)
        if fingerprint is None:
            return {"skipped": True, "msg": f"{role} is not among this cluster's roles"}
        result = {"changed": False, "role": role, "fingerprint": fingerprint}
        if self._task.check_mode:
            return result
        folder = Path(self._variable(variables, "gpubed_state_dir")).resolve() / "applied"
        node_id = self._variable(variables, "gpubed_node_id")
        if arguments["state"] == "begun":
            # A role is in one play, and each run of ansible-playbook makes its plays anew.
            run = self._task.get_play()._uuid
            result["changed"] = record_begin(folder, node_id, role, run)
        else:
            record_role(folder, node_id, role, fingerprint)
        return result

    def _variable(self, variables: dict[str, Any], name: str) -> Any:
        if name not in variables:
            raise AnsibleActionFail(
                f"{name} is undefined: run 'gpubed configure --files-only' for this cluster"
            )
        return self._templar.template(variables[name])
