"""`cluster.yml` that is edited while it is being applied: nodes and their software stay of one."""

import pytest

from gpubed.cluster import drivers, handover
from gpubed.core.errors import GpubedError, UsageError
from gpubed.core.paths import Project
from gpubed.testbeds.specification import load_plan, load_same
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
    made.spec.write_text(SPEC)
    return made


@pytest.fixture
def handed_over(monkeypatch):
    """The plans that were handed over."""
    plans = []
    monkeypatch.setattr(handover, "hand_over", lambda cluster: plans.append(cluster.plan))
    return plans


def inputs(cluster):
    granted = sample_allocation(sample_plan(nodes=[{"count": 3}]))
    return {
        "cluster": "lab",
        "configure": True,
        "specification": load_plan(cluster.spec).spec.digest,
        "allocation": granted.model_dump(mode="json"),
        "fingerprints": {},
    }


def apply(asked):
    return drivers.driver("configuration").update("lab/configuration", asked, asked)


@pytest.mark.parametrize(
    "edited",
    [SPEC.replace("3", "2"), f"{SPEC}recipe: cuda12\n", f"{SPEC}services: {{docker: {{}}}}\n"],
)
def test_what_was_edited_since_nodes_were_made_is_for_the_next_up(cluster, handed_over, edited):
    asked = inputs(cluster)
    cluster.spec.write_text(edited)
    with pytest.raises(GpubedError, match=r"cluster\.yml was changed while") as caught:
        apply(asked)
    assert caught.value.hint == "gpubed up lab applies it as it is now"
    assert handed_over == []


def test_a_half_saved_file_says_what_is_wrong_with_it(cluster, handed_over):
    asked = inputs(cluster)
    cluster.spec.write_text(SPEC[:40])
    with pytest.raises(UsageError, match="nodes"):
        apply(asked)
    assert handed_over == []


def test_a_comment_changes_nothing(cluster, handed_over):
    asked = inputs(cluster)
    cluster.spec.write_text(f"# mine\n{SPEC}")
    apply(asked)
    assert [plan.spec.count for plan in handed_over] == [3]


def test_options_of_the_testbed_count(cluster):
    before = load_plan(cluster.spec).spec.digest
    cluster.spec.write_text(SPEC.replace("{type: local}", "{type: local, runtime: vm}"))
    with pytest.raises(GpubedError, match="was changed"):
        load_same(cluster.spec, before)
