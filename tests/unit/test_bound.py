"""A testbed that is bound to a cluster: what a look found out stays with it, and with it alone.

No testbed is here; sessions with hosts are STAND-INS.
"""

import pytest
import yaml

from gpubed.core.paths import Project
from gpubed.nodes.ssh import Unreachable
from gpubed.testbeds import registry
from support.bound import kind
from support.specs import BACKENDS

OWN = {
    "version": 1,
    "backend": {"type": "static", "user": "me", "hosts": {"node": [{"address": "192.0.2.7"}]}},
    "networks": {"control": {"subnet": "192.0.2.0/24"}},
    "nodes": [{"count": 1}],
}
WALL = {
    "aggregate": {"url": "https://am.example", "urn": "urn:publicid:IDN+am+authority+cm"},
    "authority": {"slices": "https://sa.example", "members": "https://ma.example"},
    "project": "p",
    "login": "/alice.pem",
}


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A cluster of a project that nobody finds by the environment or the current folder."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.delenv("GPUBED_ROOT", raising=False)
    monkeypatch.chdir(elsewhere)
    paths = Project(tmp_path / "project").cluster("lab")
    for folder in (paths.spec.parent, paths.state):
        folder.mkdir(parents=True)
    return paths


def test_who_was_silent_is_known_to_the_one_who_looked(cluster, monkeypatch):
    def silent(*_):
        raise Unreachable("node-0 does not answer SSH")

    monkeypatch.setattr(kind("static"), "_on", silent)
    cluster.spec.write_text(yaml.safe_dump(OWN))
    one, another = (registry.bound("static", cluster) for _ in range(2))
    assert one.existing() == another.existing() == []
    assert one.unseen(set()) == another.unseen(set()) != []
    assert registry.bound("static", cluster).unseen(set()) == []


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_nothing_is_read_or_asked_before_a_question(cluster, name):
    cluster.spec.write_text("{")
    bound = registry.bound(name, cluster)
    assert (bound.backend.name, bound.paths) == (name, cluster)
