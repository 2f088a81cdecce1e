"""A port of JupyterLab that was edited and not applied: asked and told is the one that was."""

import json

import pytest

from gpubed.access import services
from gpubed.cli import status_view
from gpubed.cli.ui import UI
from gpubed.configuration import jupyterlab_port, roles
from gpubed.nodes.allocation import Cluster
from support.samples import granted_cluster, sample_allocation, sample_plan

BEFORE, EDITED = sample_plan(), sample_plan(services={"jupyterlab": {"port": 9999}})
GRANTED = sample_allocation(BEFORE)
PENDING = (
    "cluster.yml says port 9999 for JupyterLab, which is at port 8888: gpubed up lab applies it"
)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    paths = granted_cluster(tmp_path)
    paths.secrets.mkdir()
    (paths.secrets / "jupyterlab_token").write_text("t" * 64)
    jupyterlab_port.remember(Cluster(paths, BEFORE, GRANTED))
    apply(paths, BEFORE)
    return paths


def apply(paths, plan):
    """Record as the playbook does that all roles have been applied."""
    for node, done in roles.fingerprints(plan, GRANTED, paths.inventory).items():
        paths.applied.mkdir(exist_ok=True)
        (paths.applied / f"id-{node}.json").write_text(json.dumps(done))


def test_what_was_applied_is_where_it_is(cluster):
    [lab] = services.urls(Cluster(cluster, EDITED, GRANTED))
    assert ":8888/" in lab["url"]
    assert jupyterlab_port.pending(Cluster(cluster, EDITED, GRANTED)) == [PENDING]
    assert jupyterlab_port.pending(Cluster(cluster, BEFORE, GRANTED)) == []


def test_status_says_what_an_up_would_apply(capsys):
    nothing = {"nodes": [], "services": [], "failed": [], "stopped": [], "unreadable": []}
    lease = {"granted_until": None, "remaining_s": None}
    rest = {"lease": lease, "reshaped": False, "verification": None, "configured": True}
    document = {"state": "ready", "held_by": None, "pending": [PENDING], **nothing, **rest}
    ui = UI()
    ui.err = ui.out
    status_view.cluster(ui, "lab", document)
    assert PENDING in " ".join(capsys.readouterr().out.split())
