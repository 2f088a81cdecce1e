"""An engine that ended between the nodes and the configuration is known to whoever looks later."""

import pytest

from gpubed import resources
from gpubed.configuration import unfinished
from gpubed.core.errors import GpubedError
from support.samples import granted_cluster

GIVEN = {"backend": "local", "cluster": "lab", "result": None}


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A cluster of three nodes that is up, as the provider finds it."""
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    monkeypatch.setattr("gpubed.testbeds.resources._require_same_testbed", lambda _: None)
    return granted_cluster(tmp_path)


@pytest.fixture
def provider(cluster, monkeypatch):
    """Calls a method of the provider; its driver is a STAND-IN that notes what it found."""

    class Driver:
        def create(self, _inputs):
            found.append(unfinished.state(cluster))
            return "id", {}

        def update(self, *_):
            found.append(unfinished.state(cluster))
            if fails:
                raise GpubedError("no")
            return {}

    found, fails = [], []

    def call(method, kind, name, *, failing=False):
        found[:], fails[:] = [], [True] if failing else []
        monkeypatch.setattr("gpubed.testbeds.resources._driver", lambda _: Driver())
        props = {**GIVEN, "kind": kind, "name": name}
        given = (props,) if method == "create" else ("id", props, props)
        getattr(resources.Provider(), method)(*given)
        return list(found)

    return call


@pytest.mark.parametrize(
    ("method", "kind", "name"),
    [
        ("update", "node", "node-0"),
        ("create", "node", "node-1"),  # made again: it was replaced, or somebody removed it
        ("update", "slice", "slice"),
    ],
)
def test_a_node_that_is_changed_leaves_the_cluster_unfinished(
    cluster, provider, method, kind, name
):
    assert provider(method, kind, name) == ["interrupted"], "from before the change"
    assert unfinished.state(cluster) == "interrupted"
    with pytest.raises(GpubedError, match="was not completed"):
        unfinished.require_none(cluster)


@pytest.mark.parametrize(
    ("method", "kind", "name"),
    [
        ("create", "node", "node-3"),  # nobody uses it yet, and the others stay as they are
        ("create", "image", "debian-12"),
        ("create", "network", "experiment"),
        ("update", "capacity", "capacity"),
    ],
)
def test_what_changes_no_node_in_use_notes_nothing(cluster, provider, method, kind, name):
    assert provider(method, kind, name) == [""]
    assert unfinished.state(cluster) == ""
