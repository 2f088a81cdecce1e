"""Where a cluster was made is remembered: the verbs ask there, and nowhere else by mistake.

Testbeds are STAND-INS; the stack is a real one of the embedded engine.
"""

from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.backends.openstack import cloud
from gpubed.core import record
from gpubed.core.errors import GpubedError, PrerequisiteMissing
from gpubed.core.paths import Project
from gpubed.nodes.ssh import Unreachable
from gpubed.testbeds import history, registry
from gpubed.testbeds.base import Existing, Identity
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


def test_one_that_cannot_be_asked_is_named_with_a_way_out(lab):
    lab.paths.spec.write_text(STATIC)
    apply(lab.paths, "static")
    lab.daemon.away = PrerequisiteMissing("the Docker daemon is not running", "start it")
    done = call("down", "lab", "-y")
    assert done.return_value == 1
    assert "local cannot be asked: the Docker daemon is not running (start it)" in done.output
    way_out = history.forget_command(lab.paths, "local")
    assert way_out in done.output
    assert record.uuid(lab.paths) == UUID
    last(lab.paths, "local").unlink()
    assert call("down", "lab", "-y").return_value == 0


@pytest.mark.parametrize("verb", ["down", "audit", "up", "plan"])
def test_another_daemon_is_not_taken_for_the_clusters(lab, verb):
    lab.daemon.identity = OTHER
    lab.there.clear()
    refused = call(verb, "lab", *(["-y"] if verb in ("down", "up") else [])).exception
    assert isinstance(refused, history.AnotherTestbed)
    assert OTHER.called in refused.message
    assert HERE.called in refused.message
    assert "DOCKER_HOST" in refused.hint
    assert history.forget_command(lab.paths, "local") in refused.hint
    assert record.uuid(lab.paths) == UUID


def test_one_that_has_the_clusters_things_is_its_own_whatever_its_id(lab):
    lab.daemon.identity = OTHER
    history.require_same(registry.bound("local", lab.paths))
    lab.there.clear()
    history.require_same(registry.bound("local", lab.paths))


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
            current_project_id=self.project, config=SimpleNamespace(region_name=region, name="mine")
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
    assert isinstance(refused, history.AnotherTestbed)
    assert "project p1 in region One" in refused.message
    assert "OS_CLOUD" in refused.hint
    assert record.uuid(lab.paths) == UUID
