"""`cluster.yml` that is edited while it is being applied: nodes and their software stay of one."""

import pytest

from gpubed.cluster import drivers, setup
from gpubed.core.errors import GpubedError
from gpubed.core.paths import Project
from gpubed.testbeds import registry
from gpubed.testbeds.specification import frozen, load_plan
from support.samples import sample_allocation, sample_plan

SPEC = """version: 1
backend: {type: local}
nodes: [{name: node, count: 3}]
"""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    monkeypatch.setattr(Project, "find", classmethod(lambda _: Project(tmp_path)))
    made = Project(tmp_path).cluster("lab")
    made.inventory.mkdir(parents=True)
    made.state.mkdir(parents=True)
    made.spec.write_text(SPEC)
    return made


@pytest.fixture
def handed_over(monkeypatch):
    """How many nodes the plans had that were handed over."""
    counts = []
    monkeypatch.setattr(setup, "set_up", lambda made: counts.append(made.plan.spec.count))
    return counts


def inputs(plan):
    granted = sample_allocation(sample_plan(nodes=[{"count": 3}]))
    return {
        "cluster": "lab",
        "configure": True,
        "specification": plan.spec.digest,
        "allocation": granted.model_dump(mode="json"),
        "fingerprints": {},
    }


def apply(asked):
    return drivers.driver("configuration").update("lab/configuration", asked, asked)


@pytest.mark.parametrize("text", [SPEC.replace("3", "2"), SPEC[:40], ""])
def test_what_is_edited_while_up_runs_is_for_the_next_one(cluster, handed_over, text):
    plan = load_plan(cluster.spec)
    with frozen(cluster, plan):
        cluster.spec.write_text(text)
        apply(inputs(plan))
        assert registry.reach("local", cluster).specification.count == 3
    assert handed_over == [3]
    assert not cluster.frozen.exists()


def test_what_is_edited_while_plain_pulumi_runs_is_refused(cluster, handed_over):
    asked = inputs(load_plan(cluster.spec))
    cluster.spec.write_text(f"# mine\n{SPEC}")  # a comment changes nothing
    apply(asked)
    cluster.spec.write_text(SPEC.replace("{type: local}", "{type: local, runtime: vm}"))
    with pytest.raises(GpubedError, match=r"cluster\.yml was changed while") as caught:
        apply(asked)
    assert caught.value.hint == "gpubed up lab applies it as it is now"
    assert handed_over == [3]
