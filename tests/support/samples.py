"""An allocation and a plan that no testbed made, for tests of pure functions."""

from pathlib import Path

from gpubed.core.paths import Project
from gpubed.jobs.runs.record import Origin
from gpubed.nodes.allocation import Allocation
from gpubed.spec.clusterspec import model
from gpubed.spec.plan import plan


def sample_plan(**changes):
    document = {
        "version": 1,
        "name": "lab",
        "backend": {"type": "local"},
        "nodes": [{"name": "node", "count": 3}],
        "networks": {"experiment": {"rate": "200 Mbit/s"}},
    }
    return plan(model().model_validate({**document, **changes}))


def sample_allocation(cluster):
    nodes = [
        {
            "name": node.name,
            "id": f"id-{node.name}",
            "group": node.group,
            "role": node.role,
            "control_address": str(node.control_address),
            "experiment_address": node.experiment_address and str(node.experiment_address),
            "host_keys": [f"ssh-ed25519 KEY{node.index}"],
            "slots": node.slots,
            "gpus": node.gpus,
        }
        for node in cluster.nodes
    ]
    return Allocation.model_validate(
        {
            "cluster": cluster.cluster,
            "uuid": "6f0c0000-0000-4000-8000-000000000000",
            "backend": "local",
            "nodes": nodes,
            "control": {"subnet": str(cluster.control.subnet)},
            "experiment": cluster.experiment and cluster.experiment.model_dump(mode="json"),
            "one_host": True,
        }
    )


def granted_cluster(root, name="lab"):
    """Write a project with a cluster of three local nodes that is up; return its paths."""
    paths = Project(root).cluster(name)
    for folder in (paths.spec.parent, paths.state):
        folder.mkdir(parents=True)
    paths.spec.write_text("version: 1\nbackend: {type: local}\nnodes: [{count: 3}]\n")
    paths.allocation.write_text(sample_allocation(sample_plan()).model_dump_json())
    return paths


def sample_origin(**changes):
    """Return where and with what a run was made."""
    known = {"cluster": "lab", "uuid": "u", "gpubed": "0", "recipe": "cpu"}
    sums = dict.fromkeys(("recipe_sha256", "spec_sha256", "job_sha256"), "")
    return Origin(**{**known, **sums, **changes})


def job_with_checkpoints(folder: Path) -> None:
    """Write a job whose own default is a folder of checkpoints to go on from."""
    folder.mkdir(parents=True)
    (folder / "job.yml").write_text(
        "schema: gpubed/job/1\ndescription: x\nlauncher: ssh\nranks: all\n"
        "command: [python, main.py]\nsanity: []\nmetrics: {}\n"
        "arguments:\n  checkpoint: {default: mine, resumes: true, help: their folder}\n"
    )
