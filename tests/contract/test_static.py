"""What own hosts promise beyond the contract of all backends."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.conftest import made_cluster
from contract.testbeds import static
from gpubed.core import secret
from gpubed.core.paths import Project
from gpubed.nodes.ssh import SSH
from gpubed.testbeds import registry
from gpubed.testbeds.driver import NodeFailed

pytestmark = [pytest.mark.testbeds, pytest.mark.docker]

_ABSENT = {"address": "10.127.205.250", "experiment_address": "10.127.206.250"}


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Project, dict[str, Any]]]:
    """Two hosts that are there, one that is not, and a project for clusters of them."""
    project = Project(tmp_path_factory.mktemp("project"))
    asyncio.set_event_loop(asyncio.new_event_loop())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUBED_ROOT", str(project.root))
        with static.options(project) as options:
            keys = Path(options["known_hosts"])
            keys.write_text(keys.read_text() + f"{_ABSENT['address']} ssh-ed25519 {_KEY}\n")
            options["hosts"]["node"].append(_ABSENT)
            yield project, options
    asyncio.get_event_loop().close()
    asyncio.set_event_loop(None)


_KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIJ8dXbL0d0Yw0m4r0x3o8rGd7n0eC3Kz7n2QK9bq3fS9"


def specification(options: dict[str, Any], **group: Any) -> dict[str, Any]:
    return {
        **static.SPEC,
        "name": "own",
        "backend": {"type": "static", "user": "gpubed", **options},
        "nodes": [{"count": 3, **group}],
        "networks": {"experiment": {"subnet": "10.127.206.0/24", "rate": static.RATE_BPS}},
    }


SPARE = {"min": 2, "on_failure": "leave_out"}


@pytest.fixture(autouse=True, scope="module")
def _impatient() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpubed.nodes.ssh._PAUSES_S", (0.0,))
        # The whole cluster is refused by doctor where a host is missing; here it comes so far.
        patch.setattr("gpubed.backends.static.testbed.StaticTestbed.doctor", lambda *_: [])
        yield


@pytest.fixture(autouse=True)
def _told_at_once() -> Iterator[None]:
    """Let Pulumi's futures tell now that nobody asked for their error.

    They do so when they are collected, with a traceback, which Python 3.11 cannot
    format while it parses something else (python/cpython#106905).
    """
    yield
    gc.collect()


def test_too_few_hosts_are_refused_by_name_and_released(hosts: Any) -> None:
    project, options = hosts
    refused = pytest.raises(NodeFailed, match=r"node-2 .*does not answer SSH")
    with refused, made_cluster(specification(options), project):
        pass
    own = registry.bound("static", project.cluster("own"))
    assert own.existing() == [], "no mark was left that would stand in the way"


@pytest.fixture(scope="module")
def made(hosts: Any) -> Iterator[Any]:
    """A cluster of three that may do without one."""
    project, options = hosts
    with made_cluster(specification(options, **SPARE), project) as made:
        yield made


def test_the_others_go_on_without_a_host_that_is_not_there(made: Any) -> None:
    assert [node.name for node in made.allocation.nodes] == ["node-0", "node-1"]
    [failed] = made.allocation.failed
    assert failed.node == "node-2"
    assert "does not answer SSH" in failed.reason
    assert len(made.existing()) == 2


def test_a_host_of_another_cluster_is_refused(made: Any, hosts: Any) -> None:
    project, options = hosts
    thief = {**specification(options, **SPARE), "name": "thief"}
    refused = pytest.raises(NodeFailed, match="is a node of cluster own")
    with refused, made_cluster(thief, project):
        pass


def test_a_lost_key_is_exchanged_and_the_users_own_keys_stay_whole(made: Any) -> None:
    with SSH(made.allocation, made.paths) as ssh:
        ssh.run("printf %s >> .ssh/authorized_keys", "ssh-ed25519 AAAA somebody")
    made.paths.private_key.unlink()
    new = secret.ensure_key(made.paths.private_key)
    for node in made.allocation.nodes:
        owned = made.node(node.name)
        owned.inputs["public_key"] = new
        made.testbed.driver("node").create(owned.inputs)
    with SSH(made.allocation, made.paths) as ssh:
        lines = ssh.run("cat .ssh/authorized_keys").stdout.splitlines()
    assert "ssh-ed25519 AAAA somebody" in lines, "its line had no end"
    assert [line for line in lines if "gpubed:" in line] == [f"{new} gpubed:{made.uuid}"]
