"""A thousand nodes: what is looked for once, not for each node; the table of `make bench`."""

from collections import Counter
from pathlib import Path

import pytest
import yaml
from pulumi.dynamic import ResourceProvider

from gpubed.backends.local.component import gpu_ids
from gpubed.configuration import applied, due, roles
from gpubed.core import located
from gpubed.core.paths import Project
from gpubed.engines.embedded import cipher, registration
from gpubed.engines.embedded.provider import Provider
from gpubed.engines.stack import Stack
from gpubed.spec import backend_config
from gpubed.testbeds import resources
from support import growth
from support.samples import sample_allocation, sample_plan

MANY = 300


def big(**changes):
    return sample_plan(nodes=[{"name": "node", "count": MANY, **changes}])


class Names(list):
    """Names that count how often somebody looks for one among them."""

    looked = 0

    def __contains__(self, name):
        type(self).looked += 1
        return super().__contains__(name)


@pytest.fixture
def names():
    Names.looked = 0
    return Names(f"node-{index}" for index in range(MANY))


def test_what_is_foreseen_looks_through_no_list_for_each_node(tmp_path, names):
    cluster, plan = Project(tmp_path).cluster("lab"), big()
    found = due.foreseen(cluster, plan, sample_allocation(plan), anew=names, cut=names)
    assert all(len(nodes) == MANY for nodes in found.values())
    assert Names.looked == 0


def test_what_is_outdated_looks_through_no_list_for_each_node(tmp_path, names):
    cluster = Project(tmp_path).cluster("lab")
    cluster.applied.mkdir(parents=True)
    granted = sample_allocation(big())
    for node in granted.nodes:
        (cluster.applied / f"{node.id}.json").write_text('{"base": "1", "nccl": "2"}')
    applied.outdate(cluster, granted, {"base": names})
    left = {path.read_text() for path in cluster.applied.glob("*.json")}
    assert (left, Names.looked) == ({'{"nccl": "2"}'}, 0)


def test_host_vars_are_listed_once_for_all_nodes(tmp_path, monkeypatch):
    cluster, plan = Project(tmp_path).cluster("lab"), big()
    folder = cluster.inventory / "host_vars"
    folder.mkdir(parents=True)
    for index in range(MANY):
        (folder / f"node-{index}.yml").write_text("nfs_root: /data\n")
    listed, rglob = Counter(), Path.rglob

    def counted(path, pattern):
        listed[path] += 1
        return rglob(path, pattern)

    monkeypatch.setattr(Path, "rglob", counted)
    roles.fingerprints(plan, sample_allocation(plan), cluster.inventory)
    assert listed[folder] == 1


def test_no_two_nodes_share_a_gpu_and_those_that_pretend_have_none():
    groups = [
        {"name": "a", "count": 2, "gpus": 2},
        {"name": "b", "count": 1, "simulate": "V100-SXM2-16GB", "gpus": 4},
        {"name": "c", "count": 1, "gpus": 1},
    ]
    found = gpu_ids(sample_plan(nodes=groups))
    assert found == {"a-0": ["0", "1"], "a-1": ["2", "3"], "b-0": [], "c-0": ["4"]}


# As whoever writes YAML may: what the two parsers make of it must not differ.
TEXTS = [
    "a: |\n  x\n  y\nb: >-\n  c\n  d\n",
    "a: 'x'\nb: \"\\u00e9\\x41\"\nc: ~\nd:\ne: 1e3\nf: 0o17\ng: 017\nh: 2001-01-01\n",
    "# c\n---\na: &x {b: 1}\nc: *x\n",
    "a:\t[b]\n",
    "a: [b, ? c]\n",
    "a: {b: 1\n",
    "a: 1\na: 2\n",
    "[" * 5000,
    "a: \x01\n",
    "a: !@x 1\n",
    "a: [!1, b]\n",
    "%YAML 1.1#\n---\na: 1\n",
    *(backend_config.template(name).read_text() for name in backend_config.names()),
]


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="PyYAML is built without libyaml")
@pytest.mark.parametrize("text", TEXTS)
def test_both_parsers_read_the_same(text, monkeypatch):
    def said():
        try:
            found = located.parse(text.encode())
        except located.MalformedYamlError as error:
            return error.message, error.line
        return found.data, found.lines

    with_libyaml = said()
    monkeypatch.setattr(yaml, "__with_libyaml__", 0)
    assert said() == with_libyaml


@pytest.mark.process
def test_a_plan_of_a_new_cluster_starts_no_provider_and_makes_no_key(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    monkeypatch.delattr(Provider, "start")
    monkeypatch.delattr(cipher, "_derive")
    growth._declare(tmp_path, 2)
    project = Project(tmp_path)
    project.prepare()
    planned = Stack(project.cluster("growth-2"), "embedded").preview(lambda _: None)
    assert sorted(step.name for step in planned.steps if step.type.endswith("Node")) == [
        "node-0",
        "node-1",
    ]


def test_what_a_preview_does_not_ask_a_provider_is_what_it_would_not_refuse():
    assert resources.Provider.check is ResourceProvider.check
    assert f"pulumi-python:{resources.Node._resource_type_name}".startswith(registration._UNCHECKED)
