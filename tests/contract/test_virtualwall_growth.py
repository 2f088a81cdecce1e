"""Nodes join a slice that runs, where the aggregate says in GetVersion that slices can grow.

The server keeps its own record of what is allocated: that decides, not the client.
"""

from __future__ import annotations

import pytest

from gpubed.backends.virtualwall.faults import NoResources
from gpubed.core import progress
from gpubed.core.errors import Refused
from support.am import faults
from support.wall import KEY
from support.wall_site import killed_at, up, with_hardware_types

BOB = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA bob"


def _slivers(server):
    return {sliver.client_id: str(sliver.urn) for sliver in server.slivers()}


def _more(wall, count=4, **group):
    """Return the inputs before and after the count was raised."""
    before = wall.inputs
    wall.changes["nodes"] = [{"name": "node", "count": count, **group}]
    return before, wall.inputs


@with_hardware_types
def test_a_further_node_joins_and_the_others_stay(server, wall, driver):
    id_ = up(wall, driver)
    result, had = driver.read(id_, wall.inputs), _slivers(server)
    olds, news = _more(wall)
    assert list(driver.diff(result, olds, news).replace) == []
    result = driver.update(id_, olds, news)
    assert not [node for node in result["nodes"].values() if "failed" in node]
    assert had.items() < _slivers(server).items()
    assert sorted(_slivers(server)) == ["node-0", "node-1", "node-2", "node-3"]
    assert list(driver.diff(result, news, news).update) == []
    assert driver.create(news) == (id_, result), "a lost state is taken over"


@pytest.mark.parametrize("server", ["gcf"], indirect=True)
def test_an_aggregate_that_allocates_once_grants_all_nodes_anew(server, wall, driver):
    id_ = up(wall, driver)
    olds, news = _more(wall)
    assert list(driver.diff(driver.read(id_, wall.inputs), olds, news).replace) == ["request"]


@with_hardware_types
@pytest.mark.parametrize(
    "changes",
    [
        {"nodes": [{"name": "node", "count": 2}]},
        {"nodes": [{"name": "node", "count": 4, "min": 3}]},
        {"nodes": [{"name": "node", "count": 4}], "networks": {"experiment": None}},
        {"nodes": [{"name": "node", "count": 4}], "networks": {"experiment": {"rate": "1 Mbit/s"}}},
    ],
)
def test_what_changes_nodes_that_run_is_no_growth(server, wall, driver, changes):
    id_ = up(wall, driver)
    result, olds = driver.read(id_, wall.inputs), wall.inputs
    wall.changes |= changes
    assert list(driver.diff(result, olds, wall.inputs).replace) == ["request"]


@with_hardware_types
def test_a_node_that_gets_its_first_link_is_another(server, wall, driver):
    wall.changes["nodes"] = [{"name": "node", "count": 1}]
    _, result = driver.create(wall.inputs)
    olds, news = _more(wall, 2)
    assert list(driver.diff(result, olds, news).replace) == ["request"]


@with_hardware_types
@pytest.mark.parametrize("refusal", ["no machine", "no such call"])
def test_a_refused_node_leaves_the_others_and_a_later_run_gets_it(server, wall, driver, refusal):
    id_, had = up(wall, driver), _slivers(server)
    olds, news = _more(wall)
    taken = [m for m in server.inventory.machines if m.is_free] if refusal == "no machine" else []
    for machine in taken:
        machine.broken = True
    if not taken:
        server.faults.on("Update", faults.refused("not supported", code=13), nth=1, times=1)
    with pytest.raises(NoResources if taken else Refused, match=None if taken else "node-3"):
        driver.update(id_, olds, news)
    assert _slivers(server) == had
    patient = {**olds, "testbed": {**olds["testbed"], "patience": 50}}
    driver.update(id_, olds, patient)  # the count was put back, and another key changed
    assert _slivers(server) == had
    for machine in taken:
        machine.broken = False
    driver.update(id_, patient, news)
    assert had.items() < _slivers(server).items()


@with_hardware_types
def test_fewer_nodes_join_than_are_wanted_where_fewer_suffice(server, wall, driver):
    wall.changes["nodes"] = [{"name": "node", "count": 3, "min": 2}]
    id_, had = up(wall, driver), _slivers(server)
    for machine in [m for m in server.inventory.machines if m.is_free and m.type == "pcgen05"][1:]:
        machine.broken = True
    result = driver.update(id_, *_more(wall, 5, min=2))
    assert had.items() < _slivers(server).items()
    assert [name for name, node in result["nodes"].items() if "failed" in node] == ["node-4"]


@with_hardware_types
def test_a_growth_killed_after_any_call_converges(server, wall, driver):
    few, many = _more(wall, 4)

    def grow():
        driver.update(id_, few, many)

    for number in range(1, 100):
        id_, _ = driver.create(few)
        had = _slivers(server)
        was_killed = killed_at(number, grow, answered=True)
        grow()
        assert had.items() < _slivers(server).items()
        assert len(server.slivers()) == 4
        driver.delete(id_, many)
        if not was_killed:
            break
    assert number > 8


@with_hardware_types
def test_colleagues_keys_are_on_new_nodes_and_come_to_those_that_run(server, wall, driver):
    id_ = up(wall, driver)
    [slice_] = server.ledger.slices.values()
    assert [KEY in keys and BOB not in keys for keys in slice_.users.values()] == [True]
    olds, had = wall.inputs, _slivers(server)
    wall.block["login_keys"] = [BOB]
    result = driver.read(id_, olds)
    assert list(driver.diff(result, olds, wall.inputs).replace) == []
    driver.update(id_, olds, wall.inputs)
    assert [KEY in keys and BOB in keys for keys in slice_.users.values()] == [True]
    assert _slivers(server) == had
    driver.update(id_, *_more(wall))
    assert [BOB in keys for keys in slice_.users.values()] == [True]


@pytest.mark.parametrize("server", ["gcf"], indirect=True)
def test_keys_that_come_too_late_are_named(server, wall, driver, monkeypatch):
    told = []
    monkeypatch.setattr(progress, "_listener", told.append)
    id_, olds = up(wall, driver), wall.inputs
    wall.block["login_keys"] = [BOB]
    driver.update(id_, olds, wall.inputs)
    assert any("login_keys applies to new nodes only" in note["message"] for note in told)
