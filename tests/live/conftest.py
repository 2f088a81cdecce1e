"""A cluster on a real OpenStack, with the real Pulumi CLI and plugin.

    OS_CLOUD=mycloud make test-live

Any cloud will do that OS_CLOUD names (or OS_AUTH_URL and its like). What is taken: the
smallest flavor, the first external network and the image that GPUBED_LIVE_IMAGE names,
else one called debian-12. GPUBED_LIVE_ACCESS_FROM names the network that this machine has
for the cloud, GPUBED_LIVE_OTHER_IMAGE a second image that boots.

Where nova's hypervisor is its own `fake` one, which boots nothing, containers of this machine
STAND IN for the servers: see `support.hypervisor`. That needs Docker, root, and OS_ variables
of an administrator.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openstack
import pytest
import yaml

from gpubed.backends.openstack import testbed
from support import hypervisor
from support.cluster import BIN, Cluster, unique

ACCESS_FROM = os.environ.get("GPUBED_LIVE_ACCESS_FROM", "198.51.100.0/24")
NEEDED = [
    pytest.mark.live,
    pytest.mark.skipif(
        not ({"OS_CLOUD", "OS_AUTH_URL"} & set(os.environ)), reason="OS_CLOUD names no cloud"
    ),
    pytest.mark.skipif(not shutil.which("pulumi"), reason="the Pulumi CLI is not on PATH"),
]
Ids = dict[str, dict[str, str]]
# Servers close a connection that was idle while a test ran.
_PATIENT = {"connect_retries": 3}


def everything(connection: Any) -> Ids:
    """Return all that the project has, name by id, whoever made it."""
    network, compute = connection.network, connection.compute
    project = {"project_id": connection.current_project_id}
    listed = {
        "server": compute.servers(),
        "key pair": compute.keypairs(),
        "server group": compute.server_groups(),
        "network": network.networks(**project),
        "subnet": network.subnets(**project),
        # DHCP servers are the cloud's own, and go with their network.
        "port": [p for p in network.ports(**project) if p.device_owner != "network:dhcp"],
        "router": network.routers(**project),
        "floating address": network.ips(**project),
        "security group": network.security_groups(**project),
        "volume": connection.block_storage.volumes()
        if connection.has_service("block-storage")
        else (),
    }
    return {kind: {thing.id: thing.name for thing in things} for kind, things in listed.items()}


def new(now: Ids, before: Ids) -> dict[str, list[str]]:
    """Return the names of what came since."""
    return {
        kind: sorted(name for id_, name in things.items() if id_ not in before[kind])
        for kind, things in now.items()
    }


@dataclass
class Login:
    """Two application credentials, made for these tests; the first is the only one in use."""

    connection: Any
    path: Path
    entries: list[dict[str, Any]]

    @property
    def secrets(self) -> list[str]:
        return [entry["auth"]["application_credential_secret"] for entry in self.entries]

    def use(self, index: int) -> None:
        self.path.write_text(yaml.safe_dump({"clouds": {"live": self.entries[index]}}))


@dataclass
class Live:
    """A cluster on a cloud."""

    connection: Any
    cluster: Cluster
    before: Ids
    flavor: str
    login: Login
    nodes: dict[str, str] = field(default_factory=dict)

    def up(self, *words: str) -> dict[str, str]:
        document = self.cluster.json("up", "--engine", "cli", *words)
        assert {node["state"] for node in document["nodes"]} == {"ready"}
        self.nodes = {node["name"]: node["id"] for node in document["nodes"]}
        return self.nodes

    def plan(self) -> set[str]:
        """Return what `up` would do, as ``create node-3``."""
        changes = self.cluster.json("plan", "--engine", "cli")["changes"]
        return {f"{change['op']} {change['urn'].rsplit('::', 1)[-1]}" for change in changes}

    def scale(self, count: int) -> None:
        self.cluster.edit(lambda spec: spec["nodes"][0].update(count=count))

    def there(self) -> dict[str, list[str]]:
        return new(everything(self.connection), self.before)

    def pulumi(self, words: str) -> str:
        """Run plain `pulumi` the way the documentation says."""
        line = f'eval "$({BIN}/gpubed env {self.cluster.name})"; pulumi {words}'
        done = subprocess.run(
            ["bash", "-ec", line],
            cwd=self.cluster.root,
            env=self.cluster.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="session")
def owner() -> Iterator[Any]:
    """The connection of whoever runs the tests, to a cloud whose servers answer."""
    if lacking := [finding.message for finding in testbed.tools() if not finding.ok]:
        pytest.skip(lacking[0])
    connection = openstack.connect(**_PATIENT)
    needed = hypervisor.is_needed(connection)
    with hypervisor.running() if needed else nullcontext():
        yield connection


@pytest.fixture(scope="module")
def login(owner: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Login]:
    connection = owner
    user, identity = connection.current_user_id, connection.identity
    names = [f"gpubed-live-{uuid.uuid4().hex[:6]}" for _ in range(2)]
    made = [identity.create_application_credential(user, name=name) for name in names]
    path = tmp_path_factory.mktemp("credential") / "clouds.yaml"
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name in [name for name in os.environ if name.startswith("OS_")]:
                patch.delenv(name)
            patch.setenv("OS_CLIENT_CONFIG_FILE", str(path))
            found = Login(None, path, [_entry(connection.config, each) for each in made])
            found.use(0)
            found.connection = openstack.connect("live", **_PATIENT)
            yield found
    finally:
        for each in made:
            identity.delete_application_credential(user, each)


def _entry(config: Any, made: Any) -> dict[str, Any]:
    """Return what clouds.yaml has of an application credential."""
    auth = {
        "auth_url": config.auth["auth_url"],
        "application_credential_id": made.id,
        "application_credential_secret": made.secret,
    }
    return {
        "auth_type": "v3applicationcredential",
        "auth": auth,
        "region_name": config.region_name,
        "verify": config.verify,
    }


@pytest.fixture(scope="module")
def live(login: Login, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    connection = login.connection
    flavors = sorted(connection.compute.flavors(), key=lambda f: (f.vcpus, f.ram))
    external = next(iter(connection.network.networks(is_router_external=True)))
    backend = {
        "type": "openstack",
        "cloud": "live",
        "external_network": external.name,
        "flavor": flavors[0].name,
        "access_from": [ACCESS_FROM],
        "images": {"debian-12": os.environ.get("GPUBED_LIVE_IMAGE", "debian-12")},
        "shaping": "qos" if connection.network.find_extension("qos") else "none",
    }
    changes = {"backend": backend, "nodes": [{"count": 3}], "configure": False}
    name = unique("live")
    made = Cluster(tmp_path_factory.mktemp("project"), name, **changes)
    found = Live(connection, made, everything(connection), flavors[0].name, login)
    try:
        yield found
    finally:
        subprocess.run([str(BIN / "gpubed"), "down", name, "-y"], env=made.environment, check=False)
