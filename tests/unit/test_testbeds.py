"""Where a cluster was made is remembered: the verbs ask there, and nowhere else by mistake.

Testbeds are STAND-INS; the stack is a real one of the embedded engine.
"""

import json
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from gpubed import cli, resources
from gpubed.backends.openstack import cloud
from gpubed.backends.static import access
from gpubed.cluster import audit, status
from gpubed.core import record
from gpubed.core.errors import GpubedError, PrerequisiteMissing
from gpubed.core.paths import Project
from gpubed.nodes.ssh import Unreachable
from gpubed.testbeds import made_on, registry
from gpubed.testbeds.base import Existing, Identity
from gpubed.testbeds.driver import NodeFailed
from support.bound import kind
from support.known import apply, last

UUID = "6f0c0000-0000-4000-8000-000000000000"
LOCAL = "version: 1\nbackend: {type: local}\nnodes: [{count: 1}]\n"
STATIC = """
version: 1
backend: {type: static, user: me, hosts: {node: [{address: 192.0.2.7}, {address: 192.0.2.8}]}}
networks: {control: {subnet: 192.0.2.0/24}}
nodes: [{count: 2}]
"""
VOLUME = Existing("volume", "gpubed-lab-shared", "v0", UUID, data=True)
HERE = Identity("AAAA", "the Docker daemon of here at unix:///var/run/docker.sock")
OTHER = Identity("BBBB", "the Docker daemon of there at tcp://192.0.2.1:2375")


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A cluster on this machine whose volume was kept, with own hosts that are no nodes."""
    paths = Project(tmp_path).cluster("lab")
    paths.spec.parent.mkdir(parents=True)
    paths.spec.write_text(LOCAL)
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    record.keep_uuid(paths, UUID)
    there, removed, silent = [VOLUME], [], set()
    daemon = SimpleNamespace(identity=HERE, away=None)

    def existing(*_):
        if daemon.away:
            raise daemon.away
        return list(there)

    def remove(_, thing):
        there.remove(thing)
        removed.append(str(thing))

    local = kind("local")
    monkeypatch.setattr(local, "existing", existing)
    monkeypatch.setattr(local, "remove", remove)
    monkeypatch.setattr(local, "identity", lambda *_: daemon.identity)
    marked = dict[str, dict[str, str]]()

    def on(_self, _config, _host, name, _do):
        if name in silent:
            raise Unreachable(f"{name} does not answer SSH")
        return SimpleNamespace(owner=marked.get(name, {}))

    monkeypatch.setattr(kind("static"), "_on", on)
    apply(paths)
    return SimpleNamespace(
        paths=paths, there=there, removed=removed, daemon=daemon, silent=silent, marked=marked
    )


def call(*words):
    return CliRunner().invoke(cli.build(), [*words, "--engine", "embedded"], standalone_mode=False)


def test_down_asks_the_testbed_that_the_specification_names_no_more(lab):
    lab.paths.spec.write_text(STATIC)
    assert call("down", "lab", "-y").return_value == 0
    assert lab.removed == ["volume gpubed-lab-shared"]
    assert record.uuid(lab.paths) is None


def test_audit_lists_what_is_on_each(lab):
    """As of a volume that stayed where an `up` has gone to another testbed."""
    lab.paths.spec.write_text(STATIC)
    apply(lab.paths, "static")
    mark = {"cluster": "lab", "node": "node-0", "id": "node-0-1", "uuid": UUID}
    lab.marked["node-0"] = mark
    found = json.loads(call("audit", "lab", "--json").stdout)
    assert [row["name"] for row in found["unrecorded"]] == ["gpubed-lab-shared", "node-0"]


def test_hosts_that_a_killed_run_marked_are_asked_though_the_old_specification_is_back(lab):
    lab.paths.spec.write_text(STATIC)
    apply(lab.paths, "static")
    lab.paths.spec.write_text(LOCAL)
    lab.silent.add("node-1")
    done = call("down", "lab", "-y")
    assert done.return_value == 1
    assert "node-1 (192.0.2.8): node-1 does not answer SSH" in done.output
    assert record.uuid(lab.paths) == UUID


def test_one_that_cannot_be_asked_is_named_with_a_way_out(lab):
    lab.paths.spec.write_text(STATIC)
    apply(lab.paths, "static")
    lab.daemon.away = PrerequisiteMissing("the Docker daemon is not running", "start it")
    done = call("down", "lab", "-y")
    assert done.return_value == 1
    assert "local cannot be asked: the Docker daemon is not running (start it)" in done.output
    way_out = made_on.forget_command(lab.paths, "local")
    assert way_out in done.output
    assert record.uuid(lab.paths) == UUID
    last(lab.paths, "local").unlink()
    assert call("down", "lab", "-y").return_value == 0


def test_data_that_is_kept_keeps_where_it_is(lab):
    assert call("down", "lab", "--keep-data", "-y").return_value == 0
    assert made_on.kinds(lab.paths) == ["local"]


@pytest.mark.parametrize("verb", ["down", "audit", "up", "plan"])
def test_another_daemon_is_not_taken_for_the_clusters(lab, verb):
    lab.daemon.identity = OTHER
    lab.there.clear()
    refused = call(verb, "lab", *(["-y"] if verb in ("down", "up") else [])).exception
    assert isinstance(refused, made_on.AnotherTestbed)
    assert OTHER.called in refused.message
    assert HERE.called in refused.message
    assert "DOCKER_HOST" in refused.hint
    assert made_on.forget_command(lab.paths, "local") in refused.hint
    assert record.uuid(lab.paths) == UUID


def test_what_was_installed_anew_can_be_said_to_be(lab):
    lab.daemon.identity = OTHER
    lab.there.clear()
    last(lab.paths, "local").unlink()  # as the hint says
    done = call("down", "lab", "-y")
    assert done.return_value == 0, done.output


def test_one_that_has_the_clusters_things_is_its_own_whatever_its_id(lab):
    lab.daemon.identity = OTHER
    made_on.require_same(registry.bound("local", lab.paths))
    lab.there.clear()
    made_on.require_same(registry.bound("local", lab.paths))


def test_a_driver_does_not_take_another_one_for_it_either(lab, monkeypatch):
    """As plain `pulumi destroy` calls it."""
    lab.daemon.identity = OTHER
    lab.there.clear()
    monkeypatch.setattr("gpubed.testbeds.resources._driver", lambda _: pytest.fail("removed"))
    node = {"backend": "local", "kind": "node", "cluster": "lab", "name": "node-0", "result": {}}
    for do in (resources.Provider().delete, resources.Provider().read):
        with pytest.raises(made_on.AnotherTestbed):
            do("c0", node)


class Silent:
    """A driver of nodes that fail after they were marked, and then are silent."""

    def create(self, _inputs):
        raise NodeFailed("the connection broke")

    def delete(self, _id, _inputs):
        raise Unreachable("node-1 does not answer SSH")


def test_what_a_failed_node_left_is_recorded_and_looked_for(lab, monkeypatch):
    lab.paths.spec.write_text(STATIC)
    monkeypatch.setattr("gpubed.testbeds.resources._driver", lambda _: Silent())
    given = {"backend": "static", "kind": "node", "cluster": "lab", "name": "node-1"}
    made = resources.Provider().create({**given, "on_failure": "leave_out", "result": None})
    assert made.outs["result"]["left"] == "node-1 does not answer SSH"
    good = {**given, "name": "node-0", "result": {"id": "node-0-1"}}
    state = [
        {"type": "x:Node", "urn": f"u::{outputs['name']}", "id": "i", "outputs": outputs}
        for outputs in (good, made.outs)
    ]
    stack = SimpleNamespace(paths=lab.paths, export=lambda: {"deployment": {"resources": state}})
    assert (audit.nodes(stack), audit.left_nodes(stack)) == ({"node-0"}, {"node-1"})
    lab.silent.add("node-1")
    asked = audit.testbeds(stack)
    asked.existing()
    [said] = asked.unseen(audit.nodes(stack), audit.left_nodes(stack))
    assert said.startswith("node-1 ")
    resources.Provider().delete(made.id, made.outs)  # goes on, as an `up` that asks again must


def test_down_goes_without_a_host_that_is_named(lab):
    last(lab.paths, "local").unlink()
    lab.paths.spec.write_text(STATIC)
    lab.silent.add("node-1")
    done = call("down", "lab", "-y")
    assert "gpubed down lab --without node-1" in done.output
    refused = call("down", "lab", "-y", "--without", "node-7").exception
    assert "no own host 'node-7'" in refused.message
    done = call("down", "lab", "-y", "--without", "192.0.2.8")
    assert done.return_value == 0
    assert "left as it is: node-1 (192.0.2.8)" in done.output
    assert "once it is back, on it: sudo sh /etc/gpubed/release " in done.output
    assert record.uuid(lab.paths) is None


FAULTS = {
    "a group without hosts": STATIC.replace("[{address: 192.0.2.7}, {address: 192.0.2.8}]", ""),
    "another fault": STATIC + "recipe: nonsense\n",
    "no YAML": "{",
}


@pytest.mark.parametrize("text", FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_in_the_specification_does_not_stop_a_down(lab, text):
    lab.paths.spec.write_text(STATIC)
    apply(lab.paths, "static")
    lab.paths.spec.write_text(text)
    assert call("down", "lab", "-y").return_value == 0


def test_verbs_that_work_from_the_state_need_no_specification(lab):
    lab.paths.spec.unlink()
    assert call("audit", "lab").exception is None
    assert call("down", "lab", "-y").return_value == 0
    assert lab.removed == ["volume gpubed-lab-shared"]


def test_status_tells_of_what_was_applied_last(lab):
    lab.paths.spec.unlink()
    assert [node.name for node in status._wanted(lab.paths, "local").nodes] == ["node-0"]


def test_status_does_so_too_where_the_specification_has_an_error_by_now(lab):
    lab.paths.spec.write_text(f"{LOCAL}\nxx: 1\n")
    assert [node.name for node in status._wanted(lab.paths, "local").nodes] == ["node-0"]


@pytest.mark.parametrize("words", [("plan", "lab"), ("up", "lab"), ("audit", "lab", "--adopt")])
def test_others_name_the_copy_that_was_applied_last(lab, words):
    lab.paths.spec.unlink()
    refused = call(*words).exception
    assert "was made, and its specification" in refused.message
    copy = last(lab.paths, "local")
    assert f"cp {copy} {lab.paths.spec}" in refused.hint
    assert "gpubed down lab" in refused.hint


def test_init_writes_over_no_living_cluster(lab):
    lab.paths.spec.unlink()
    done = CliRunner().invoke(cli.build(), ["init", "lab"], standalone_mode=False)
    assert isinstance(done.exception, GpubedError)
    assert str(last(lab.paths, "local")) in done.exception.hint
    assert not lab.paths.spec.exists()


CLOUD = """
version: 1
backend:
  {type: openstack, cloud: mine, region: One, external_network: public, flavor: small,
   access_from: [198.51.100.7/32]}
nodes: [{count: 1}]
"""


class Clouds:
    """STAND-IN for OpenStack: by project and region, what there is of the cluster."""

    def __init__(self):
        self.project = "p1"
        self.things = {("p1", "One"): [VOLUME]}

    def connect(self, _cloud, region):
        return SimpleNamespace(
            current_project_id=self.project,
            config=SimpleNamespace(region_name=region, name="mine"),
        )

    def existing(self, testbed):
        there = testbed._connection
        return self.things.get((there.current_project_id, there.config.region_name), [])


@pytest.fixture
def clouds(lab, monkeypatch):
    """A cluster on a cloud whose volume was kept."""
    clouds = Clouds()
    monkeypatch.setattr(cloud, "connect", clouds.connect)
    monkeypatch.setattr(kind("openstack"), "existing", lambda testbed: clouds.existing(testbed))
    monkeypatch.setattr(type(registry.backend("openstack")), "engine_required", None)
    last(lab.paths, "local").unlink()
    lab.paths.spec.write_text(CLOUD)
    apply(lab.paths, "openstack")
    return clouds


@pytest.mark.parametrize("moved", ["region", "project"])
@pytest.mark.parametrize("verb", ["down", "audit"])
def test_another_region_or_project_of_a_cloud_is_not_taken_for_the_clusters(
    lab, clouds, moved, verb
):
    """As after an edit of `region`, or where another openrc file was sourced since."""
    if moved == "region":
        lab.paths.spec.write_text(CLOUD.replace("One", "Two"))
    else:
        clouds.project = "p2"
    refused = call(verb, "lab", *(["-y"] if verb == "down" else [])).exception
    assert isinstance(refused, made_on.AnotherTestbed)
    assert "project p1 in region One" in refused.message
    assert "OS_CLOUD" in refused.hint
    assert record.uuid(lab.paths) == UUID


def test_a_cloud_by_another_name_is_the_same(lab, clouds):
    lab.paths.spec.write_text(CLOUD.replace("mine", "same"))
    made_on.require_same(registry.bound("openstack", lab.paths))
    assert call("down", "lab", "--keep-data", "-y").return_value == 0


@pytest.mark.parametrize("again", [False, True])
def test_a_marked_host_that_hosts_name_no_more_is_let_go_where_no_state_knows_it(
    lab, monkeypatch, again
):
    """As after an `up` that was killed, or a lost state, and an edit of `hosts`.

    And after another `up` with the edited file, which was killed, too.
    """
    lab.paths.spec.write_text(STATIC)
    last(lab.paths, "local").unlink()
    apply(lab.paths, "static")
    mark = {"cluster": "lab", "node": "node-1", "id": "node-1-1", "uuid": UUID}
    lab.marked["node-1"] = mark
    one = STATIC.replace(", {address: 192.0.2.8}", "").replace("count: 2", "count: 1")
    lab.paths.spec.write_text(one)
    if again:
        apply(lab.paths, "static")
    released = []
    monkeypatch.setattr(
        kind("static"),
        "remove",
        lambda _, thing: released.append(lab.marked.pop(thing.node or thing.name)["node"]),
    )
    assert call("down", "lab", "-y").return_value == 0
    assert released == ["node-1"]
    assert record.uuid(lab.paths) is None


def test_what_former_runs_began_is_looked_for_until_one_comes_to_its_end(lab):
    for text in (STATIC, STATIC.replace("192.0.2.8", "192.0.2.9"), STATIC):
        lab.paths.spec.write_text(text)
        apply(lab.paths, "static")
    reach = registry.reach("static", lab.paths)
    addresses = {
        str(host.address) for config in access.attempted(reach) for host in config.hosts["node"]
    }
    assert addresses == {"192.0.2.7", "192.0.2.8", "192.0.2.9"}
    made_on.forget_attempts(registry.bound("static", lab.paths))
    assert [str(host.address) for host in access.known(reach).hosts["node"]] == [
        "192.0.2.7",
        "192.0.2.8",
    ]
    assert len(access.attempted(reach)) == 1
