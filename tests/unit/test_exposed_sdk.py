"""Who runs Pulumi's CLI is told what other users of the machine can reach meanwhile."""

from gpubed.cluster import doctor
from gpubed.testbeds import registry


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
