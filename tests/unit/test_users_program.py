"""A cluster in a user's own program, with Pulumi's own mocks in place of an engine."""

from pathlib import Path
from typing import Any, ClassVar

import pulumi
import pytest
from pulumi.runtime.mocks import MockMonitor

from gpubed.core.errors import UsageError
from gpubed.core.paths import Project
from gpubed.nodes import allocation
from gpubed.nodes.allocation import NotUp
from gpubed.resources import Cluster
from gpubed.testbeds import resources
from support.declared import KEY, UUID, mocked

SPEC = """version: 1
backend: {type: local}
nodes: [{name: node, count: 2}]
configure: false
"""


class Mocks(pulumi.runtime.Mocks):
    """Answers every resource as its driver would."""

    def new_resource(
        self, args: pulumi.runtime.MockResourceArgs
    ) -> tuple[str | None, dict[Any, Any]]:
        result = {
            "uuid": UUID,
            "public_key": KEY,
            "id": "i",
            "name": "n",
            "control_address": args.inputs.get("control", {}).get("address"),
            "host_keys": ["k AAAA"],
        }
        return f"{args.name}-id", {**args.inputs, "result": result}

    def call(self, args: pulumi.runtime.MockCallArgs) -> tuple[dict[Any, Any], list[Any] | None]:
        return {}, None


class Monitor(MockMonitor):
    """Remembers the parents' types, the type and the name of all resources, as URNs have them."""

    seen: ClassVar[list[tuple[str, str]]] = []

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802
        above = request.parent.rpartition("::")[0].rpartition("::")[2]
        self.seen.append((above, f"{request.type}::{request.name}"))
        return super().RegisterResource(request)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a program of the user's own."""
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    (tmp_path / "Pulumi.yaml").write_text("name: experiment\nruntime: python\n")
    for name in ("one", "two"):
        (tmp_path / "inventories" / name).mkdir(parents=True)
        (tmp_path / "inventories" / name / "cluster.yml").write_text(SPEC)
    return tmp_path


def run(program: Any) -> list[tuple[str, str]]:
    """Run a program; return its resources."""
    Monitor.seen = []
    monitor = Monitor(Mocks())
    with mocked(monitor.mocks, monitor):
        pulumi.runtime.test(program)()
    return Monitor.seen


def test_all_of_two_clusters_are_children_that_do_not_clash(project: Path) -> None:
    def program() -> None:
        Cluster("one")
        Cluster("b", "inventories/two/cluster.yml")

    seen = run(program)
    assert len(set(seen)) == len(seen) > 10
    tops = [name for above, name in seen if above == "pulumi:pulumi:Stack"]
    assert tops == ["gpubed:cluster/one:Cluster::one", "gpubed:cluster/two:Cluster::b"]


def test_outputs_say_how_to_get_there(project: Path) -> None:
    found: list[Any] = []

    def program() -> pulumi.Output[None]:
        made = Cluster("lab", spec=project / "inventories/one/cluster.yml")
        return pulumi.Output.all(
            made.uuid, made.state, made.head, made.head_address, made.node_addresses
        ).apply(found.extend)

    run(program)
    uuid, state, head, address, addresses = found
    assert (uuid, state, head) == (UUID, "allocated", "node-0")
    assert [*addresses] == ["node-0", "node-1"]
    assert addresses["node-0"] == address


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("inventories/none/cluster.yml", "the file does not exist"),
        ("elsewhere.yml", "the folder of Pulumi.yaml, is the project"),
    ],
)
def test_a_specification_that_is_not_there_is_named(project: Path, spec: str, says: str) -> None:
    with pytest.raises(pulumi.RunError, match=says):
        run(lambda: Cluster("lab", spec) and None)


def test_gpubeds_own_verbs_leave_its_resources_to_pulumi(project: Path) -> None:
    paths = Project(project).cluster("one")
    with pytest.raises(UsageError, match="runs your own Pulumi program") as refused:
        paths.prepare()
    assert "pulumi up" in (refused.value.hint or "")
    with pytest.raises(NotUp) as absent:
        allocation.load(paths.allocation)
    assert absent.value.hint == "pulumi up; if it was up already: gpubed audit one"
    paths.prepare(leftovers=True)
    assert not (project / "stacks").exists()
    paths.allocation.parent.mkdir(parents=True)
    paths.allocation.write_text("{}")
    with pytest.raises(UsageError):
        paths.prepare(leftovers=True)


@pytest.mark.parametrize("main", ["stacks/cluster", "./stacks/cluster/", '"stacks/cluster"'])
def test_gpubeds_own_program_is_known_however_it_is_written(tmp_path: Path, main: str) -> None:
    (tmp_path / "Pulumi.yaml").write_text(f"name: gpubed\nmain: {main}\nruntime: python\n")
    assert not Project(tmp_path).has_users_program


def test_a_node_that_a_renamed_resource_adopts_stays(project: Path) -> None:
    """As after `pulumi state rename`; no state of the user's can be looked at."""
    props = {"cluster": "one", "kind": "node"}
    resources._owners.cache_clear()
    assert resources._count(props, "i", 1) == 2
    assert resources._count(props, "i", -1) == 1, "of the new name"
    assert resources._count(props, "other", -1) == 0
