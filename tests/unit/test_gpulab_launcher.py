"""A job whose id GPULab never told may be beyond the page of jobs that it lists."""

import json
from types import SimpleNamespace

import pytest

from gpubed.backends.gpulab import launcher, testbed
from gpubed.backends.gpulab.client import PAGE, RemoteJob
from gpubed.core.errors import GpubedError
from gpubed.core.paths import Project
from gpubed.testbeds import registry
from support.bound import kind

ID = "00000000-0000-4000-8000-000000000000"
OTHER = RemoteJob.model_validate({"uuid": ID, "name": "other", "state": {"status": "FINISHED"}})


def test_a_job_that_may_be_beyond_the_page_is_told(tmp_path, monkeypatch):
    paths = Project(tmp_path).cluster("gl")
    monkeypatch.setattr(kind("gpulab"), "_config", None)
    service = SimpleNamespace(jobs=lambda: [OTHER] * PAGE)
    monkeypatch.setattr(testbed, "Client", lambda _: service)
    run = paths.runs / "r1"
    run.mkdir(parents=True)
    rows = [{"name": f"job-{n}", "id": "", "open": is_open} for n, is_open in [(1, 1), (2, 0)]]
    (run / launcher.RECORD).write_text(json.dumps(rows))
    with pytest.raises(GpubedError, match="unknown whether job job-1 exists") as caught:
        registry.bound("gpulab", paths).existing()
    assert "then: rm " in caught.value.hint
