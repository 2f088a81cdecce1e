"""A cluster on the test server of a GENI site: its specification, plan and inputs."""

from __future__ import annotations

import os
import uuid as uuids
from pathlib import Path
from typing import Any

import yaml

from gpubed.backends.virtualwall import slice_inputs
from gpubed.core.paths import ClusterPaths, Project
from gpubed.spec.clusterspec import model
from gpubed.spec.plan import ClusterPlan, plan
from gpubed.testbeds import registry
from gpubed.testbeds.base import Testbed
from support.am import PROJECT

NAME = "wall"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHb4u1VvZ0kL2n6m4VwYx0xq5o0Qm8mQ2m0lq1n8T2aB"


def backend(server: Any, user: Any, **changes: Any) -> dict[str, Any]:
    """Return the backend block of a specification."""
    found = {
        "type": "virtualwall",
        "aggregate": {"url": server.am_url, "urn": server.site.manager},
        "authority": {"slices": server.sa_url, "members": server.ma_url},
        "project": PROJECT,
        "login": str(user.pem),
        "ca": str(server.bundle),
        "poll": 0.05,
        "patience": 60,
        "hardware": {"node": {"type": "pcgen05"}},
    }
    if user.passphrase:
        found["passphrase_file"] = str(_passphrase_file(user))
    return found | changes


def _passphrase_file(user: Any) -> Path:
    path = Path(user.pem).with_suffix(".passphrase")
    if not path.exists():
        path.write_text(f"{user.passphrase}\n")
        path.chmod(0o600)
    return path


def document(block: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a specification."""
    base = {
        "version": 1,
        "backend": block,
        "nodes": [{"name": "node", "count": 3}],
        "networks": {"experiment": {"rate": "1 Gbit/s"}},
        "configure": False,
    }
    return base | changes


def planned(block: dict[str, Any], **changes: Any) -> ClusterPlan:
    return plan(model().model_validate({"name": NAME, **document(block, **changes)}))


class Wall:
    """A project folder with one cluster on a test server."""

    def __init__(self, root: Path, server: Any, user: Any, **changes: Any) -> None:
        self.server, self.user = server, user
        self.block = backend(server, user, **changes.pop("backend", {}))
        self.changes = changes
        self.paths: ClusterPaths = Project(root).cluster(NAME)
        self.paths.spec.parent.mkdir(parents=True, exist_ok=True)
        self.paths.spec.write_text(yaml.safe_dump(document(self.block, **changes)))
        self.uuid = str(uuids.uuid4())
        os.environ["GPUBED_ROOT"] = str(root)

    @property
    def testbed(self) -> Testbed:
        """The testbed, as who has never looked sees it."""
        return registry.bound("virtualwall", self.paths)

    @property
    def plan(self) -> ClusterPlan:
        """The plan of the specification."""
        return planned(self.block, **self.changes)

    @property
    def inputs(self) -> dict[str, Any]:
        """The inputs of the slice, as the component declares them."""
        return slice_inputs.planned(self.plan) | {"uuid": self.uuid, "public_key": KEY}
