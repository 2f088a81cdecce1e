"""Who runs Pulumi's CLI is told what other users of the machine can reach meanwhile."""

import json
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.cluster import doctor, preview
from gpubed.engines import stack
from gpubed.testbeds import registry
from support.samples import granted_cluster, sample_plan


def engine_finding(monkeypatch, path, backend=None):
    monkeypatch.setattr(doctor.shutil, "which", lambda _: path)
    return doctor._engine(backend and registry.backend(backend))


def test_doctor_says_it_where_the_cli_is_what_runs(monkeypatch):
    found = engine_finding(monkeypatch, "/opt/pulumi")
    assert found.ok
    for part in ("/opt/pulumi", "other users of this machine", "loopback", "--engine embedded"):
        assert part in found.message
    assert "other users" not in engine_finding(monkeypatch, None).message


def test_where_the_cli_is_needed_something_else_helps(monkeypatch):
    said = engine_finding(monkeypatch, "/opt/pulumi", "openstack").message
    assert "--engine embedded" not in said
    assert "network namespace" in said


@pytest.mark.parametrize(("engine", "told"), [("cli", 1), ("embedded", 0)])
def test_plan_says_it_shortly(tmp_path, monkeypatch, engine, told):
    granted_cluster(tmp_path)
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    monkeypatch.setattr(stack, "choose", lambda _: engine)
    steps = SimpleNamespace(steps=[], changes={})
    seen = preview.Preview(sample_plan(), steps, [], {}, lost=[], refused=[], notes=[])
    monkeypatch.setattr(preview, "preview", lambda *_: seen)
    done = CliRunner().invoke(cli.build(), ["plan", "lab", "--json"], standalone_mode=False)
    warnings = json.loads(done.stdout)["warnings"]
    assert sum("other users of this machine" in line for line in warnings) == told
    assert doctor.exposed(engine, registry.backend("local")) == warnings[-1:] * told
