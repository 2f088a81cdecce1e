"""A specification that is edited to lead elsewhere loses no cluster: `down` tells the two apart.

Testbeds are STAND-INS; the stack is a real one of the embedded engine.
"""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import yaml
from typer.testing import CliRunner

from gpubed import cli
from gpubed.backends.gpulab.client import Login
from gpubed.backends.gpulab.launcher import GpulabLauncher
from gpubed.core import record
from gpubed.core.errors import PrerequisiteMissing
from gpubed.core.paths import Project
from gpubed.jobs import execution
from gpubed.jobs.runs.record import Request
from gpubed.nodes.allocation import Allocation, Cluster
from gpubed.testbeds import history, registry
from gpubed.testbeds.base import Ended, Existing, Identity
from gpubed.testbeds.specification import load_plan
from support.bound import kind
from support.known import apply, last

UUID = "6f0c0000-0000-4000-8000-000000000000"
USER = "urn:publicid:IDN+example.org+user+alice"
JOB = {
    "version": 1,
    "backend": {
        "type": "gpulab",
        "master": "https://one.example/api/",
        "certificate": "/alice.pem",
        "project": "p",
        "image": "example.org/horovod:1",
    },
    "nodes": [{"count": 1, "machine": {"cpus": 1, "memory": "1 GB"}}],
}
WALL = {
    "version": 1,
    "backend": {
        "type": "virtualwall",
        "aggregate": {"url": "https://am.example", "urn": "urn:publicid:IDN+am+authority+cm"},
        "authority": {"slices": "https://sa.example/2", "members": "https://ma.example/2"},
        "project": "p",
        "login": "/alice.pem",
    },
    "nodes": [{"name": "node", "count": 1}],
}
JOB_THERE = Existing("job", "j", "j-1", UUID, transient=True)
VOLUME = Existing("volume", "v", "v-1", UUID, data=True)
SLICE = Existing("slice", "lab-6f0c0000", "urn:publicid:IDN+x+slice+lab-6f0c0000", UUID)
LOCAL = {"version": 1, "backend": {"type": "local"}, "nodes": [{"count": 1}]}


TWO = {**JOB, "backend": {**JOB["backend"], "master": "https://two.example/api/"}}


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A cluster whose state is lost, and what testbeds have of it, by their ids."""
    paths = Project(tmp_path).cluster("lab")
    paths.spec.parent.mkdir(parents=True)
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    record.keep_uuid(paths, UUID)
    there = dict[str, list[Existing]]()

    def read(config):
        if "gone" in config.certificate:
            raise PrerequisiteMissing(f"{config.certificate}: no such file", "fetch it")
        return SimpleNamespace(urn=USER)

    monkeypatch.setattr(Login, "of", read)

    def existing(testbed):
        found = there.get(testbed.identity().id, [])
        if isinstance(found, Exception):
            raise found
        return list(found)

    for name in ("gpulab", "virtualwall"):
        monkeypatch.setattr(kind(name), "existing", existing)
    return SimpleNamespace(paths=paths, there=there)


def made(lab, spec, **options):
    """Apply a specification with other options of its testbed, as far as the record goes."""
    testbed = edited(lab, spec, **options)
    history.require_same(testbed, recorded=False)
    apply(lab.paths, testbed.backend.name)
    return testbed


def edited(lab, spec, **options):
    changed = {**spec, "backend": {**spec["backend"], **options}}
    lab.paths.spec.write_text(yaml.safe_dump(changed))
    return registry.bound(spec["backend"]["type"], lab.paths)


def call(*words):
    return CliRunner().invoke(cli.build(), [*words, "--engine", "embedded"], standalone_mode=False)


def down(*words):
    return call("down", "lab", "-y", *words)


ELSEWHERE = {
    "another service": (JOB, {"master": "https://two.example/api/"}),
    "another project": (WALL, {"project": "q"}),
    "another aggregate": (
        WALL,
        {"aggregate": {"url": "https://am.example", "urn": "urn:publicid:IDN+b+authority+cm"}},
    ),
    "another authority": (
        WALL,
        {"authority": {"slices": "https://sb.example/2", "members": "https://ma.example/2"}},
    ),
}
THE_SAME = {
    "another certificate": (JOB, {"certificate": "/moved.pem"}),
    "another login": (WALL, {"login": "/moved.pem", "patience": 60}),
    "another port": (
        WALL,
        {"authority": {"slices": "https://sa.example:8443/2", "members": "https://ma.example/2"}},
    ),
    "capitals": (JOB, {"master": "https://ONE.example/api/"}),
    "the usual port": (JOB, {"master": "https://one.example.:443/api/"}),
    "a URN": (
        WALL,
        {"aggregate": {"url": "https://b.example", "urn": "urn:publicid:IDN+AM+authority+cm"}},
    ),
}


@pytest.mark.parametrize(("spec", "options"), ELSEWHERE.values(), ids=ELSEWHERE.keys())
def test_down_does_not_take_another_testbed_for_the_clusters(lab, spec, options):
    first = made(lab, spec).identity().id
    lab.there[first] = [JOB_THERE]
    edited(lab, spec, **options)
    refused = down().exception
    assert isinstance(refused, history.AnotherTestbed)
    assert "back; to leave that one: do so, gpubed down lab, edit it again" in refused.hint
    assert f"only if that one is no more, with what it had: rm {last(lab.paths)}" in refused.hint
    assert record.uuid(lab.paths) == UUID
    edited(lab, spec)
    lab.there[first] = []
    assert down().return_value == 0
    assert record.uuid(lab.paths) is None


@pytest.mark.parametrize(("spec", "options"), THE_SAME.values(), ids=THE_SAME.keys())
@pytest.mark.parametrize("noted", ["now", "by a former version"])
def test_credentials_ways_and_spellings_may_change(lab, spec, options, noted):
    made(lab, spec)
    with record.changed(lab.paths) as known:
        if noted != "now":  # it knew less
            known.testbeds[0].id = USER if spec is JOB else ""
    edited(lab, spec, **options)
    assert down().return_value == 0
    assert record.uuid(lab.paths) is None


@pytest.fixture
def two_services(lab):
    """A cluster that was made on one service, of which nothing was left, and then on another."""
    lab.one = made(lab, JOB).identity().id
    lab.first = last(lab.paths)
    lab.two = made(lab, TWO).identity().id
    return lab


def test_what_is_still_where_a_former_specification_led_is_told_and_how_it_goes(two_services):
    lab = two_services
    lab.there[lab.one] = [JOB_THERE]
    done = down()
    assert done.return_value == 1
    assert "STILL THERE: job j, where a former specification led" in done.output
    back = f"cp --backup=numbered {lab.first} {lab.paths.spec}, then gpubed down lab"
    assert back in done.output.replace("\n", "")
    assert record.uuid(lab.paths) == UUID
    edited(lab, JOB)  # as it says
    lab.there[lab.one] = []  # it has ended by itself
    assert down().return_value == 0


@pytest.mark.parametrize("text", ["", "version: 1\nrecipe: none\n"], ids=["cut off", "of another"])
def test_one_that_cannot_be_asked_is_named_with_a_way_out(two_services, text):
    lab = two_services
    lab.first.write_text(text)
    done = down()
    assert done.return_value == 1
    said = done.output.replace("\n", "")
    assert f"gpulab cannot be asked, as {lab.first} says where it is" in said
    assert f"rm {lab.first}, and again" in said
    assert record.uuid(lab.paths) == UUID
    lab.first.unlink()
    assert down().return_value == 0


def test_without_any_specification_nothing_is_forgotten(two_services):
    lab = two_services
    for path in (lab.paths.spec, *lab.paths.specifications.iterdir()):
        path.unlink()
    refused = down().exception
    assert "may exist, but its specification" in refused.message
    assert f"restore {lab.paths.spec}; or if it has no resources" in refused.hint


def test_data_that_is_kept_is_kept_elsewhere_too(two_services):
    lab = two_services
    lab.there |= {lab.one: [VOLUME], lab.two: [VOLUME]}
    found = json.loads(down("--keep-data", "--json").stdout)
    assert (found["kept"], found["survivors"]) == (["volume v"], [])
    lab.there[lab.one] = [Existing("volume", "w", "w-1", UUID, data=True)]
    done = down("--keep-data", "--json")
    assert (done.return_value, json.loads(done.stdout)["kept"]) == (0, ["volume v", "volume w"])
    lab.there[lab.two] = []
    assert "STILL THERE: volume w" in down().output


def test_a_volume_that_is_to_stay_is_kept_and_named(two_services):
    lab = two_services
    lab.there |= {key: [replace(VOLUME, stays=True)] for key in (lab.one, lab.two)}
    found = json.loads(down("--json").stdout)
    assert (found["kept"], found["survivors"]) == (["volume v"], [])


def test_a_testbed_that_has_nothing_may_be_left_and_one_that_is_silent_not(lab):
    first = made(lab, WALL).identity().id
    second = edited(lab, WALL, project="q")
    with pytest.raises(history.AnotherTestbed):
        history.require_same(second)  # the state names something
    lab.there[first] = PrerequisiteMissing("no such host")
    with pytest.raises(history.AnotherTestbed):
        history.require_same(second, recorded=False)
    lab.there[first] = []
    history.require_same(second, recorded=False)
    apply(lab.paths, "virtualwall")
    lab.there[second.identity().id] = [SLICE]
    edited(lab, WALL)  # and back
    assert "STILL THERE: slice lab-6f0c0000, where a former" in down().output


@pytest.fixture
def two_daemons(lab, monkeypatch):
    """A cluster made on daemon A, and anew on B; the environment leads to one of them."""
    local, now = kind("local"), SimpleNamespace(id="A")
    monkeypatch.setattr(local, "identity", lambda _: Identity(now.id, f"daemon {now.id}"))
    monkeypatch.setattr(local, "existing", lambda _: list(lab.there.get(now.id, [])))
    monkeypatch.setattr(local, "remove", lambda _, thing: lab.there[now.id].remove(thing))
    made(lab, LOCAL)
    lab.there["A"] = [Existing("container", "lab-node-0", "c-a", UUID)]
    now.id = "B"
    with pytest.raises(history.AnotherTestbed, match="daemon A") as refused:
        history.require_same(registry.bound("local", lab.paths))
    assert "(a daemon that was installed anew)" in refused.value.hint
    last(lab.paths).unlink()  # A's machine is off
    made(lab, LOCAL)
    lab.there["B"] = [Existing("container", "lab-node-0", "c-b", UUID)]
    now.id = "A"
    return now


def test_what_is_noted_counts_and_not_where_the_environment_leads(lab, two_daemons):
    done = down()
    assert done.return_value == 1
    assert "leads to daemon A by now, and led to the one with the id B" in done.output
    assert "set DOCKER_HOST as it was then" in done.output
    assert record.uuid(lab.paths) == UUID
    two_daemons.id = "B"
    done = down()
    assert f"rm {last(lab.paths)}, and again" in done.output.replace("\n", "")
    assert not any(lab.there.values())
    last(lab.paths).unlink()
    assert down().return_value == 0


@pytest.mark.process
def test_no_job_starts_where_no_note_leads(lab, monkeypatch):
    made(lab, JOB)
    plan = load_plan(lab.paths.spec)
    granted = {"cluster": "lab", "uuid": UUID, "backend": "gpulab", "nodes": ()}
    network = {"control": {"subnet": "10.0.0.0/24"}}
    cluster = Cluster(lab.paths, plan, Allocation.model_validate({**granted, **network}))
    request, ran = Request(job="digits"), []
    monkeypatch.setattr(
        GpulabLauncher,
        "run",
        lambda _s, _c, task, _o: ran.append(task) or [Ended() for _ in task.worlds],
    )
    edited(lab, JOB, patience=60)
    execution.run(cluster, request)
    assert last(lab.paths).read_text() == lab.paths.spec.read_text()
    edited(lab, JOB, master="https://two.example/api/")
    for begin in (execution.foresee, execution.run):
        with pytest.raises(history.AnotherTestbed):
            begin(cluster, request)
    assert len(ran) == 1
