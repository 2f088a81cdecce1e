"""A specification that is edited to lead elsewhere loses no cluster: `down` tells the two apart.

Testbeds are STAND-INS; the stack is a real one of the embedded engine.
"""

import json
import subprocess
from types import SimpleNamespace

import pytest
import yaml
from typer.testing import CliRunner

from gpubed import cli
from gpubed.backends.gpulab import component, login
from gpubed.backends.gpulab.launcher import GpulabLauncher
from gpubed.core import files, places
from gpubed.core.errors import PrerequisiteMissing, UsageError
from gpubed.core.paths import Project
from gpubed.jobs import execution
from gpubed.jobs.runs.record import Request
from gpubed.nodes.allocation import Allocation
from gpubed.nodes.cluster import Cluster
from gpubed.testbeds import copies, identities, made_on, registry
from gpubed.testbeds.base import Existing, Identity
from gpubed.testbeds.specification import load_plan
from support.bound import kind

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
FORMER = {"virtualwall": "", "gpulab": USER}  # what former versions noted


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A cluster whose state is lost, and what testbeds have of it, by their ids."""
    paths = Project(tmp_path).cluster("lab")
    paths.spec.parent.mkdir(parents=True)
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    identities.keep(paths, UUID)
    there = dict[str, list[Existing]]()

    def read(config):
        if "gone" in config.certificate:
            raise PrerequisiteMissing(f"{config.certificate}: no such file", "fetch it")
        return SimpleNamespace(urn=USER)

    monkeypatch.setattr(login, "read", read)

    def existing(testbed):
        found = there.get(testbed.identity().id, [])
        if isinstance(found, Exception):
            raise found
        return list(found)

    for name in ("gpulab", "virtualwall"):
        monkeypatch.setattr(kind(name), "existing", existing)
    return SimpleNamespace(paths=paths, there=there)


def made(lab, spec):
    """Apply a specification, as far as notes go."""
    lab.paths.spec.write_text(yaml.safe_dump(spec))
    testbed = registry.bound(spec["backend"]["type"], lab.paths)
    made_on.require_same(testbed)
    made_on.note(testbed)
    made_on.keep_specification(testbed)
    return testbed


def by_a_former_version(lab, spec):
    """Leave of it what a version left that noted less."""
    name = made(lab, spec).backend.name
    (lab.paths.testbeds / f"{name}.json").write_text(
        json.dumps({"version": 1, "id": FORMER[name], "called": ""})
    )


def there_is(lab, spec, *things):
    """Put things where a specification leads; return the id of that testbed."""
    lab.paths.spec.write_text(yaml.safe_dump(spec))
    where = registry.bound(spec["backend"]["type"], lab.paths).identity().id
    lab.there[where] = list(things)
    return where


def attempt(lab, text, name="bbbbbbbbbbbb"):
    """Leave the specification of a run before the last one."""
    copy = lab.paths.testbeds / "attempts" / f"gpulab-{name}.yml"
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(text if isinstance(text, str) else yaml.safe_dump(text))
    return copy


def edited(lab, spec, **options):
    changed = {**spec, "backend": {**spec["backend"], **options}}
    lab.paths.spec.write_text(yaml.safe_dump(changed))
    return changed


def noted(lab, name):
    return json.loads((lab.paths.testbeds / f"{name}.json").read_text())


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
}


@pytest.mark.parametrize("do", [made, by_a_former_version])
@pytest.mark.parametrize(("spec", "options"), ELSEWHERE.values(), ids=ELSEWHERE.keys())
def test_down_does_not_take_another_testbed_for_the_clusters(lab, do, spec, options):
    do(lab, spec)
    first = there_is(lab, spec, JOB_THERE)
    edited(lab, spec, **options)
    refused = down().exception
    assert isinstance(refused, made_on.AnotherTestbed)
    assert "back; to leave that one: do so, gpubed down lab, edit it again" in refused.hint
    assert "only if that one is no more, with what it had" in refused.hint
    assert identities.kept(lab.paths) == UUID
    lab.paths.spec.write_text(yaml.safe_dump(spec))
    lab.there[first] = []
    assert down().return_value == 0
    assert identities.kept(lab.paths) is None


@pytest.mark.parametrize("do", [made, by_a_former_version])
@pytest.mark.parametrize(("spec", "options"), THE_SAME.values(), ids=THE_SAME.keys())
def test_credentials_and_ways_may_change(lab, do, spec, options):
    do(lab, spec)
    edited(lab, spec, **options)
    assert down().return_value == 0
    assert identities.kept(lab.paths) is None


@pytest.mark.parametrize("spec", [JOB, WALL], ids=["gpulab", "virtualwall"])
def test_what_a_former_version_noted_is_written_anew(lab, spec):
    by_a_former_version(lab, spec)
    testbed = registry.bound(spec["backend"]["type"], lab.paths)
    made_on.require_same(testbed)
    assert noted(lab, testbed.backend.name)["id"] == testbed.identity().id


def test_a_note_of_a_former_version_that_kept_no_copy_is_believed(lab):
    by_a_former_version(lab, WALL)
    (lab.paths.testbeds / "virtualwall.yml").unlink()
    made_on.note(registry.bound("virtualwall", lab.paths))
    assert noted(lab, "virtualwall")["id"]


def test_a_certificate_that_moved_before_an_update_of_gpubed_stops_no_down(lab):
    """Then nothing can tell where the specification led that was applied last."""
    by_a_former_version(lab, {**JOB, "backend": {**JOB["backend"], "certificate": "/alice.pem"}})
    copy = lab.paths.testbeds / "gpulab.yml"
    copy.write_text(copy.read_text().replace("/alice.pem", "/gone.pem"))
    made(lab, edited(lab, JOB, certificate="/moved.pem"))
    made_on.forget_attempts(registry.bound("gpulab", lab.paths))
    assert len(copies.every(lab.paths, "gpulab")) == 1
    assert down().return_value == 0


@pytest.fixture
def begun_elsewhere(lab, monkeypatch):
    """As where nobody could tell which service a first run, which was killed, had found."""
    with monkeypatch.context() as unknown:
        unknown.setattr(
            kind("gpulab"), "identity", lambda _: (_ for _ in ()).throw(PrerequisiteMissing("?"))
        )
        lab.paths.spec.write_text(yaml.safe_dump(JOB))
        testbed = registry.bound("gpulab", lab.paths)
        made_on.note(testbed)
        made_on.keep_specification(testbed)
    (lab.paths.testbeds / "gpulab.yml").write_text(
        yaml.safe_dump(JOB).replace("/alice.pem", "/gone.pem")
    )
    second = made(lab, edited(lab, JOB, master="https://two.example/api/"))
    made_on.require_same(registry.bound("gpulab", lab.paths))
    made_on.forget_attempts(registry.bound("gpulab", lab.paths))
    return second


def test_what_a_kept_specification_led_to_is_asked_before_anything_is_forgotten(
    lab, begun_elsewhere
):
    done = down()
    assert done.return_value == 1
    assert "may have something of it still: gpulab cannot be asked, as " in done.output
    assert identities.kept(lab.paths) == UUID
    [copy] = (lab.paths.testbeds / "attempts").iterdir()
    copy.write_text(yaml.safe_dump(JOB))
    lab.there[f"https://one.example/api/ {USER}"] = [JOB_THERE]
    done = down()
    assert done.return_value == 1
    assert "STILL THERE: job j, where a former specification led" in done.output
    back = f"cp --backup=numbered {copy} {lab.paths.spec}, then gpubed down lab"
    assert back in done.output.replace("\n", "")
    assert identities.kept(lab.paths) == UUID
    lab.there.clear()
    assert down().return_value == 0
    assert identities.kept(lab.paths) is None


def test_there_is_a_way_out(lab, begun_elsewhere):
    [copy] = (lab.paths.testbeds / "attempts").iterdir()
    assert f"if nothing of it is there: rm {copy}, and again" in down().output
    copy.unlink()
    assert down().return_value == 0


def test_specifications_of_former_runs_on_another_kind_of_testbed_stay(lab):
    made(lab, WALL)
    made(lab, edited(lab, WALL, patience=60))
    made_on.forget_attempts(made(lab, JOB))
    assert len(copies.every(lab.paths, "virtualwall")) == 2


TWO = {**JOB, "backend": {**JOB["backend"], "master": "https://two.example/api/"}}
GONE = {**JOB, "backend": {**JOB["backend"], "certificate": "/gone.pem"}}
THREE = {**JOB, "backend": {**JOB["backend"], "master": "https://three.example/api/"}}


@pytest.mark.parametrize(
    "text", ["", yaml.safe_dump({**JOB, "recipe": "cuda11"})], ids=["a power cut", "an update"]
)
def test_a_copy_that_cannot_be_used_counts_as_not_asked(lab, text):
    first = there_is(lab, JOB, JOB_THERE)
    made(lab, TWO)
    copy = attempt(lab, text)
    done = down()
    assert done.return_value == 1
    assert f"gpulab cannot be asked, as {copy} says where it is" in done.output.replace("\n", "")
    assert identities.kept(lab.paths) == UUID
    assert lab.there[first]


def test_no_last_copy_stands_in_for_a_copy(lab):
    made(lab, WALL)
    spoilt = lab.paths.testbeds / "spoilt.yml"
    spoilt.write_text("")
    for name in ("virtualwall", "gpulab"):
        reach = registry.reach(name, lab.paths).by(spoilt)
        with pytest.raises(UsageError, match="must be a mapping"):
            registry.backend(name).bind(reach, lab.paths).identity()
    own = registry.backend("static").bind(registry.reach("static", lab.paths).by(spoilt), lab.paths)
    with pytest.raises(UsageError, match="must be a mapping"):
        own.existing()


def test_copies_are_kept_as_safely_as_the_note(lab, monkeypatch):
    written = {}
    write = files.write

    def seen(path, content, mode=0o644, *, durable=False):
        written[path.name] = durable
        write(path, content, mode, durable=durable)

    monkeypatch.setattr(files, "write", seen)
    made(lab, WALL)
    made(lab, edited(lab, WALL, patience=60))
    assert len(written) == 3
    assert all(written.values()), written


def test_the_way_out_of_one_place_leaves_the_others(lab):
    second = there_is(lab, TWO, JOB_THERE)
    gone = attempt(lab, GONE, "a" * 12)
    attempt(lab, TWO)
    made(lab, THREE)
    assert f"rm {gone}, and again" in down().output
    gone.unlink()
    done = down()
    assert "STILL THERE: job j" in done.output
    assert identities.kept(lab.paths) == UUID
    (lab.paths.testbeds / "gpulab.json").unlink()  # nobody said it of this copy
    assert "STILL THERE: job j" in down().output
    lab.there[second] = []
    assert down().return_value == 0


def test_the_way_out_works_where_the_specification_is_gone(lab):
    made(lab, TWO)
    gone = attempt(lab, GONE)
    lab.paths.spec.unlink()
    assert f"rm {gone}, and again" in down().output
    gone.unlink()
    assert down().return_value == 0


def test_what_is_lost_is_not_said_to_be_data(lab):
    made(lab, TWO)
    lab.paths.spec.unlink()
    (lab.paths.testbeds / "gpulab.json").unlink()
    refused = down().exception
    assert "may have been kept" in refused.message
    assert f"restore {lab.paths.spec}; or if nothing of it is anywhere" in refused.hint


RENAMED = {
    **WALL,
    "backend": {
        **WALL["backend"],
        "authority": {"slices": "https://new.example/2", "members": "https://ma.example/2"},
    },
}


@pytest.mark.parametrize("former", [[SLICE], PrerequisiteMissing("no such host")])
def test_one_that_was_renamed_is_the_same_in_all_that_is_noted(lab, former):
    made(lab, WALL)
    lab.there[registry.bound("virtualwall", lab.paths).identity().id] = former
    second = there_is(lab, RENAMED, SLICE)
    made_on.forget_attempts(made(lab, RENAMED))
    assert len(copies.every(lab.paths, "virtualwall")) == 1
    lab.there[second] = []
    assert down().return_value == 0


def test_what_a_former_place_has_beside_is_not_taken_for_a_former_name(lab):
    made(lab, WALL)
    lab.there[registry.bound("virtualwall", lab.paths).identity().id] = [SLICE, VOLUME]
    second = there_is(lab, RENAMED, SLICE)
    made(lab, RENAMED)
    lab.there[second] = []
    assert "STILL THERE: volume v, where a former specification led" in down().output


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
    with pytest.raises(made_on.AnotherTestbed, match="daemon A") as refused:
        made_on.require_same(registry.bound("local", lab.paths))
    assert "(a daemon that was installed anew)" in refused.value.hint
    (lab.paths.testbeds / "local.json").unlink()  # A's machine is off
    made(lab, LOCAL)
    lab.there["B"] = [Existing("container", "lab-node-0", "c-b", UUID)]
    now.id = "A"
    return now


def test_what_is_noted_counts_and_not_where_the_environment_leads(lab, two_daemons):
    done = down()
    assert done.return_value == 1
    assert "leads to daemon A by now, and led to the one with the id B" in done.output
    assert "set DOCKER_HOST as it was then" in done.output
    assert identities.kept(lab.paths) == UUID
    two_daemons.id = "B"
    assert down().return_value == 0
    assert not any(lab.there.values())


def test_no_up_forgets_where_the_same_specification_led(lab, two_daemons):
    with pytest.raises(made_on.AnotherTestbed, match="with the id B") as refused:
        made(lab, LOCAL)
    copy = lab.paths.testbeds / "local.yml"
    assert f"rm {copy}, and again" in refused.value.hint
    copy.unlink()  # as it says
    made(lab, LOCAL)


def test_a_daemon_with_another_id_and_all_that_it_had_is_the_same(lab, monkeypatch):
    local, now = kind("local"), SimpleNamespace(id="A")
    monkeypatch.setattr(local, "identity", lambda _: Identity(now.id, f"daemon {now.id}"))
    monkeypatch.setattr(local, "existing", lambda _: list(lab.there["it"]))
    made(lab, LOCAL)
    lab.there["it"] = [Existing("container", "lab-node-0", "c-a", UUID)]
    now.id = "B"
    made(lab, LOCAL)
    lab.there["it"] = []
    assert down().return_value == 0


def test_a_testbed_that_has_nothing_may_be_left(lab):
    """As where the first `up` found no free machine there."""
    made(lab, WALL)
    made_on.require_same(made(lab, WALL), recorded=False)
    lab.paths.spec.write_text(yaml.safe_dump(RENAMED))
    with pytest.raises(made_on.AnotherTestbed):
        made_on.require_same(registry.bound("virtualwall", lab.paths))
    second = registry.bound("virtualwall", lab.paths)
    made_on.require_same(second, recorded=False)
    assert noted(lab, "virtualwall")["id"] == second.identity().id
    made_on.keep_specification(second)
    lab.there[second.identity().id] = [SLICE]
    lab.paths.spec.write_text(yaml.safe_dump(WALL))  # and back: its copy is kept
    assert "STILL THERE: slice lab-6f0c0000, where a former" in down().output
    lab.there.clear()
    assert down().return_value == 0


def test_one_that_cannot_be_asked_is_not_left(lab):
    made(lab, WALL)
    first = registry.bound("virtualwall", lab.paths).identity().id
    lab.there[first] = PrerequisiteMissing("no such host")
    lab.paths.spec.write_text(yaml.safe_dump(RENAMED))
    with pytest.raises(made_on.AnotherTestbed):
        made_on.require_same(registry.bound("virtualwall", lab.paths), recorded=False)


@pytest.mark.process
def test_what_is_still_there_is_removed_by_what_is_printed(lab):
    first = there_is(lab, JOB, JOB_THERE)
    made(lab, TWO)
    copy = attempt(lab, JOB)
    said = down().output.replace("\n", "")
    command = f"cp --backup=numbered {copy} {lab.paths.spec}"
    assert f"{command}, then gpubed down lab" in said
    subprocess.run(command.split(), check=True)
    assert yaml.safe_load(lab.paths.spec.with_name("cluster.yml.~1~").read_text()) == TWO
    lab.there[first] = []  # it has ended by itself
    assert down().return_value == 0


SPELLED = {
    "capitals": (JOB, {"master": "https://ONE.example/api/"}),
    "the usual port": (JOB, {"master": "https://one.example:443/api/"}),
    "a final dot": (JOB, {"master": "https://one.example./api/"}),
    "a URN": (
        WALL,
        {"aggregate": {"url": "https://b.example", "urn": "urn:publicid:IDN+AM+authority+cm"}},
    ),
    "an authority": (
        WALL,
        {"authority": {"slices": "https://SA.example.:443/2", "members": "https://ma.example/2"}},
    ),
}


@pytest.mark.parametrize(("spec", "options"), SPELLED.values(), ids=SPELLED.keys())
@pytest.mark.parametrize("back", [False, True])
def test_a_spelling_makes_no_other_testbed(lab, spec, options, back):
    other = {**spec, "backend": {**spec["backend"], **options}}
    first, second = (other, spec) if back else (spec, other)
    testbed = made(lab, first)
    if back:  # as today's versions noted it
        note = lab.paths.testbeds / f"{testbed.backend.name}.json"
        raw = note.read_text().replace("one.example", "ONE.example:443").replace("sa.ex", "SA.ex")
        note.write_text(raw)
    lab.paths.spec.write_text(yaml.safe_dump(second))
    made_on.require_same(registry.bound(spec["backend"]["type"], lab.paths))
    assert down().return_value == 0


def test_addresses_and_broken_urls_are_spelled_in_one_way():
    assert places.url("https://[2001:DB8:0::1]:443/a?b") == "https://[2001:db8::1]/a?b"
    assert places.url("https://x:none/") == "https://x:none/"
    assert places.url("https://x:8443/") == "https://x:8443/"
    assert places.urn("a word") == "a word"


def test_audit_asks_where_former_specifications_led(lab):
    there_is(lab, JOB, VOLUME, Existing("node", "n", "n-1", UUID))
    made(lab, TWO)
    attempt(lab, JOB)
    attempt(lab, "", "a" * 12)
    done = call("audit", "lab", "--json")
    found = json.loads(done.stdout)
    assert done.return_value == 1
    assert [row["name"] for row in found["elsewhere"]] == ["v", "n"]
    assert "gpulab cannot be asked, as" in found["unseen"][0]
    assert "elsewhere   node n: where a former specification led" in call("audit", "lab").output


def test_data_that_is_kept_is_kept_elsewhere_too(lab):
    first = there_is(lab, JOB, VOLUME)
    second = there_is(lab, TWO, VOLUME)
    made(lab, TWO)
    attempt(lab, JOB)
    found = json.loads(down("--keep-data", "--json").stdout)
    assert (found["kept"], found["survivors"]) == (["volume v"], [])
    lab.there[first] = [Existing("volume", "w", "w-1", UUID, data=True)]
    done = down("--keep-data", "--json")
    assert json.loads(done.stdout)["kept"] == ["volume v", "volume w"]
    assert done.return_value == 0
    assert identities.kept(lab.paths) == UUID
    lab.there[second] = []
    assert "STILL THERE: volume w" in down().output


def test_a_testbed_that_has_left_nothing_in_the_state_is_asked_by_down_and_left(lab):
    made(lab, JOB)
    edited(lab, JOB, master="https://two.example/api/")
    assert down().return_value == 0
    assert identities.kept(lab.paths) is None


@pytest.mark.process
def test_no_job_starts_where_no_note_leads(lab, monkeypatch):
    made(lab, JOB)
    plan = load_plan(lab.paths.spec)
    granted = Allocation.model_validate(component.allocation(plan, UUID))
    cluster = Cluster(lab.paths, plan, granted)
    request = Request(job="digits")
    ran = []
    monkeypatch.setattr(
        GpulabLauncher,
        "run",
        lambda _s, _c, task, _o: ran.append(task) or ["" for _ in task.worlds],
    )
    execution.run(cluster, request)
    edited(lab, JOB, patience=60)
    execution.run(cluster, request)
    assert len(ran) == 2
    assert (lab.paths.testbeds / "gpulab.yml").read_text() == lab.paths.spec.read_text()
    edited(lab, JOB, master="https://two.example/api/")
    for begin in (execution.foresee, execution.run):
        with pytest.raises(made_on.AnotherTestbed):
            begin(cluster, request)
    assert len(ran) == 2
