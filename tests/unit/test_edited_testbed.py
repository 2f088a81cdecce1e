"""A specification that is edited to lead elsewhere loses no cluster: `down` tells the two apart.

Testbeds are STAND-INS; the stack is a real one of the embedded engine.
"""

import json
from types import SimpleNamespace

import pytest
import yaml
from typer.testing import CliRunner

from gpubed import cli
from gpubed.backends.gpulab import login
from gpubed.core.errors import PrerequisiteMissing
from gpubed.core.paths import Project
from gpubed.testbeds import copies, identities, made_on, registry
from gpubed.testbeds.base import Existing, Identity
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
    for name in ("gpulab", "virtualwall"):
        monkeypatch.setattr(kind(name), "existing", lambda s: there.get(s.identity().id, []))
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


def edited(lab, spec, **options):
    changed = {**spec, "backend": {**spec["backend"], **options}}
    lab.paths.spec.write_text(yaml.safe_dump(changed))
    return changed


def noted(lab, name):
    return json.loads((lab.paths.testbeds / f"{name}.json").read_text())


def down():
    return CliRunner().invoke(
        cli.build(), ["down", "lab", "-y", "--engine", "embedded"], standalone_mode=False
    )


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
    edited(lab, spec, **options)
    refused = down().exception
    assert isinstance(refused, made_on.AnotherTestbed)
    assert "back; only if that one is no more" in refused.hint
    assert identities.kept(lab.paths) == UUID
    lab.paths.spec.write_text(yaml.safe_dump(spec))
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
    first = Identity(f"https://one.example/api/ {USER}", "")
    lab.there[first.id] = [Existing("job", "j", "j-1", UUID, transient=True)]
    done = down()
    assert done.return_value == 1
    assert "STILL THERE: job j, where a former specification led" in done.output
    assert f"cp {copy} {lab.paths.spec}" in done.output.replace("\n", "")
    assert identities.kept(lab.paths) == UUID
    lab.there.clear()
    assert down().return_value == 0
    assert identities.kept(lab.paths) is None


def test_there_is_a_way_out(lab, begun_elsewhere):
    way_out = made_on.forget_command(lab.paths, "gpulab")
    assert way_out in down().output
    (lab.paths.testbeds / "gpulab.json").unlink()
    assert down().return_value == 0


def test_specifications_of_former_runs_on_another_kind_of_testbed_stay(lab):
    made(lab, WALL)
    made(lab, edited(lab, WALL, patience=60))
    made_on.forget_attempts(made(lab, JOB))
    assert len(copies.every(lab.paths, "virtualwall")) == 2
