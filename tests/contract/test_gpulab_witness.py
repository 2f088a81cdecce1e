"""The schema of GPULab's public client accepts the job that gpubed submits.

The client is a program of its own, installed apart (PyPI: imecilabt-gpulab-cli 3.11.12, GPL-3), and
found on PATH or by GPUBED_GPULAB_CLI. gpubed never needs it.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gpubed.backends.gpulab import request
from gpubed.spec import clusterspec
from gpubed.spec.plan import plan
from gpubed.testbeds.base import Task
from support.gpulab.site import Site

CLI = os.environ.get("GPUBED_GPULAB_CLI") or shutil.which("gpulab-cli")
READS = (
    "import sys; from imecilabt.gpulab.schemas.job2 import NewJobV4; "
    "print(NewJobV4.model_validate_json(sys.stdin.read()).request.resources.gpus)"
)


@pytest.mark.skipif(CLI is None, reason="gpulab-cli is not installed: GPUBED_GPULAB_CLI names it")
def test_its_own_schema_accepts_what_gpubed_sends(tmp_path):
    (tmp_path / "job").mkdir()
    with Site(tmp_path) as site:
        document = {"name": "gl", **site.spec(cluster=6)}
    cluster = plan(clusterspec.model().model_validate(document))
    job = request.render(
        cluster,
        cluster.nodes[0],
        name="by-hand",
        labels=request.label("gl", "6f0c"),
        project_urn="urn:publicid:IDN+ilabt.imec.be+project+myproj",
        task=Task("job", tmp_path / "job", [], "1", tmp_path, (), frozenset(), {}),
        command=["true"],
        environment={"GPUBED_RUN_DIR": f"{site.storage}/by-hand"},
        mark="gpubed-00",
    )
    words = [Path(CLI).resolve().parent / "python", "-c", READS]
    text = json.dumps(job).encode()
    done = subprocess.run(words, input=text, capture_output=True, check=True)
    assert done.stdout.strip() == b"10"
