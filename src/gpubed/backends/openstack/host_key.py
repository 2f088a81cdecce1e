"""Host keys of nodes, made on the controller and handed over in the user data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpubed.core import secret
from gpubed.core.paths import ClusterPaths
from gpubed.testbeds.driver import Change, Driver, Properties


def path(paths: ClusterPaths, node: str) -> Path:
    """Return the file of a node's private host key."""
    return paths.secrets / f"host_{node}"


class HostKeyDriver(Driver):
    """Inputs: cluster, uuid, name. The private half is in a file, never in the state."""

    def __init__(self, paths: ClusterPaths) -> None:
        self._paths = paths

    def diff(self, result: Properties, olds: Properties, news: Properties) -> Change:
        """Compare with the file: a lost key is made again, which replaces the node."""
        if secret.public_key(self._file(news)) != result.get("public"):
            return Change(replace=["public"])
        return super().diff(result, olds, news)

    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        """Make the key, unless an interrupted run did."""
        return f"{inputs['uuid']}/{inputs['name']}", {
            "public": secret.ensure_key(self._file(inputs))
        }

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        """Return the public half; None when the file is gone."""
        public = secret.public_key(self._file(inputs))
        return {"public": public} if public else None

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        """Forget the key."""
        self._file(inputs).unlink(missing_ok=True)

    def _file(self, inputs: Properties) -> Path:
        return path(self._paths, inputs["name"])
