"""The driver that makes a machine of SLICES a node.

The controller makes the machine's host key and sends it in the user data, so that no other machine
can impersonate the node. The private half is in a file, never in the state.
"""

from __future__ import annotations

import re
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from gpubed.backends.slices.config import Config
from gpubed.backends.slices.tool import LOOK_S, Login, Machine, Tool
from gpubed.core import reading, secret
from gpubed.core.errors import PrerequisiteMissing, Refused
from gpubed.core.paths import ClusterPaths
from gpubed.nodes import host_keys
from gpubed.testbeds.driver import Driver, NodeFailed, Properties

_ONE_BY_ONE = threading.Lock()


class NodeDriver(Driver):
    """Inputs: cluster, uuid, name, testbed, where, flavor, image, public_key, lease_s."""

    replace_keys = frozenset({"cluster", "uuid", "name", "where", "flavor", "image", "public_key"})

    def __init__(self, paths: ClusterPaths) -> None:
        self._paths = paths

    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        """Request a machine, unless an interrupted run did, and wait until it is up."""
        config, tool, name = _resolved(inputs)
        found = tool.machine(name)
        if found and not self._key(inputs).exists():
            tool.destroy(name)  # its host key is lost, so it cannot be verified
            found = None
        if found is None:
            self._request(tool, name, inputs)
        deadline = time.monotonic() + config.patience
        while not (found and found.status == "up" and found.ssh_logins):
            status = found.status if found else "not listed"
            if re.search("fail|error", status, re.IGNORECASE) or time.monotonic() > deadline:
                why = f"{inputs['name']}: machine {name} is {status}"
                raise NodeFailed(why, f"slices bi list --experiment {tool.experiment}")
            time.sleep(LOOK_S)
            found = tool.machine(name)
        return found.id, self._result(config, found, inputs)

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        """Return the node's data as `create` does; None if the machine or its key is gone."""
        config, tool, name = _resolved(inputs)
        found = tool.machine(name)
        if not (found and found.id == id and found.ssh_logins and self._key(inputs).exists()):
            return None
        return self._result(config, found, inputs)

    def update(self, id: str, olds: Properties, news: Properties) -> dict[str, Any]:  # noqa: A002
        """Return the node with its present login; the machine does not change."""
        return self.create(news)[1]

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        """Remove the machine and its host key."""
        _, tool, name = _resolved(inputs)
        tool.destroy(name)
        self._key(inputs).unlink(missing_ok=True)

    def _key(self, inputs: Properties) -> Path:
        return self._paths.secrets / f"host_{inputs['name']}"

    def _request(self, tool: Tool, name: str, inputs: Properties) -> None:
        public = secret.ensure_key(self._key(inputs))
        private = reading.file(self._key(inputs)).text()
        keys = {"ed25519_private": private, "ed25519_public": public}
        data = {"hostname": inputs["name"], "ssh_deletekeys": True, "ssh_keys": keys}
        data["ssh_authorized_keys"] = [inputs["public_key"]]
        user_data = "#cloud-config\n" + yaml.safe_dump(data, sort_keys=False, width=1000)
        until = datetime.now(UTC) + timedelta(seconds=inputs["lease_s"])
        with _ONE_BY_ONE:  # all nodes share the experiment
            tool.hold_experiment(until)
        try:
            tool.request(name, inputs["flavor"], inputs["image"], user_data, until)
        except Refused as error:
            if tool.machine(name) is None:  # else the command of a killed run has made it
                raise NodeFailed(f"{inputs['name']}: {error.message}") from None

    def _result(self, config: Config, found: Machine, inputs: Properties) -> dict[str, Any]:
        login, keys = found.ssh_logins[0], [secret.public_key(self._key(inputs))]
        via = [_hop(config, login.jump_proxy)] if login.jump_proxy else []
        there = {"control_address": login.host, "port": login.port, "user": login.username}
        return {"id": found.id, **there, "host_keys": keys, "via": via}


def _resolved(inputs: Properties) -> tuple[Config, Tool, str]:
    """Return options, command, and the machine's name, by which later runs find it."""
    config = Config.model_validate(inputs["testbed"], extra="ignore")
    name = f"{inputs['cluster']}-{inputs['uuid']}-{inputs['name']}"
    return config, Tool(config, inputs["cluster"]), name


def _hop(config: Config, jump: Login) -> dict[str, Any]:
    known, keys = Path(config.known_hosts).expanduser(), tuple[str, ...]()
    with suppress(reading.Missing):
        keys = host_keys.keys(known, jump.host, jump.port)
    if not keys:
        raise PrerequisiteMissing(
            f"the host key of the bastion {jump.host} is not in {known}",
            f"ssh -p {jump.port} {jump.username}@{jump.host}   (once, and compare the fingerprint)",
        )
    way = {"address": jump.host, "port": jump.port, "user": jump.username, "host_keys": [*keys]}
    return way | {"identity": str(Path(config.key).expanduser())}
