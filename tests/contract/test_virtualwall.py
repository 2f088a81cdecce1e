"""The virtualwall backend's slice, against a GENI site that verifies what it is sent.

The server keeps its own record of what is allocated: that decides, not the client.
"""

from __future__ import annotations

import random
import threading
from contextlib import suppress
from datetime import timedelta

import pytest

from gpubed.backends.virtualwall import journal, transport
from gpubed.backends.virtualwall.slice_inputs import SliceInputs
from gpubed.core.errors import GpubedError, Refused
from support.am import faults
from support.wall_site import (
    GARBLED,
    KNOWN,
    NODES,
    granted,
    killed_at,
    three_machines,
    up,
    with_hardware_types,
)

CALLS = (
    "GetVersion",
    "geni-ma/get_credentials",
    "geni-sa/lookup",
    "geni-sa/create",
    "geni-sa/get_credentials",
    "Describe",
    "Allocate",
    "Provision",
    "Renew",
    "PerformOperationalAction",
)


PASSING = (
    lambda: faults.http(503),
    lambda: faults.http(502, after=True),
    faults.reset,
    faults.lost,
    faults.busy,
    lambda: faults.slow(0.2),
)


def _slice(server):
    [urn] = server.ledger.slices
    return urn


def _sliver(server, name):
    [found] = [s for s in server.ledger.find(_slice(server)).all_slivers() if s.client_id == name]
    return found


def _meet(server, wall, name):
    journal.save_node(wall.paths, name, KNOWN | {"id": str(_sliver(server, name).urn)})


def test_a_life_from_nothing_to_nothing(server, wall, driver):
    id_ = up(wall, driver)
    assert len(list(server.slivers())) >= 3
    testbed = wall.testbed
    [thing] = testbed.existing()
    assert (thing.id, thing.uuid) == (id_, wall.uuid)
    testbed.remove(thing)
    assert server.slivers() == []
    assert testbed.existing() == []
    driver.delete(id_, wall.inputs)


def test_a_second_create_adopts_and_changes_nothing(server, wall, driver):
    first = driver.create(wall.inputs)
    before = len(server.calls)
    assert driver.create(wall.inputs) == first
    changing = {"Allocate", "Provision", "Delete", "PerformOperationalAction", "create"}
    assert not [c for c in server.calls[before:] if c.method in changing]
    assert driver.read(first[0], wall.inputs) == first[1]


@pytest.mark.parametrize("seed", range(10))
def test_faults_at_every_call_pass_and_the_cluster_is_ready(server, wall, driver, seed):
    """Ten lives; in each, every kind of call fails once, in another way."""
    chosen = random.Random(seed)
    for call in CALLS:
        server.faults.on(call, chosen.choice(PASSING)(), nth=1, times=1)
    id_ = up(wall, driver)
    for call in ("GetVersion", "geni-sa/lookup", "geni-sa/get_credentials", "Describe", "Delete"):
        server.faults.on(call, chosen.choice(PASSING)(), nth=1, times=1)
    driver.delete(id_, wall.inputs)
    assert server.slivers() == []


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", ["refused", "garbled"])
def test_a_fault_that_does_not_pass_leaves_a_ready_cluster_or_nothing(
    server, wall, driver, call, kind
):
    """What was carried out but cannot be read is the worst: garbled in another way each."""
    garbled = GARBLED[CALLS.index(call) % len(GARBLED)]
    fault = faults.refused("out of coffee", code=7) if kind == "refused" else garbled()
    server.faults.on(call, fault, nth=1, times=1)
    try:
        up(wall, driver)
    except GpubedError:
        assert server.slivers() == []
        server.faults.clear()
        up(wall, driver)


CHANGING = {"create", "Allocate", "Provision", "Renew", "PerformOperationalAction", "Delete"}


def test_a_run_killed_between_any_two_calls_converges(server, wall, driver):
    """Killed once a call was answered but not noted; and before each that changes things."""

    def life_and_death():
        driver.delete(up(wall, driver), wall.inputs)

    life_and_death()
    life = [call.method for call in server.calls]
    places = [(number, True) for number in range(1, len(life) + 1)]
    places += [(n, False) for n, method in enumerate(life, 1) if method in CHANGING]
    killed = 0
    for number, answered in places:
        killed += killed_at(number, life_and_death, answered=answered)
        id_ = up(wall, driver)
        assert len(set(map(str, server.slivers()))) == len(server.slivers())
        driver.delete(id_, wall.inputs)
        assert server.slivers() == []
    # How often a life asks whether nodes are ready differs a little, and where there is a slice
    # already it is not made.
    assert killed >= len(places) - 6


def test_a_node_in_use_that_failed_costs_the_others_nothing(server, wall, driver):
    """Pulumi's state was lost, and one of the nodes is broken by now."""
    up(wall, driver)
    _meet(server, wall, "node-0")
    broken = _sliver(server, "node-2")
    broken.operational, broken.error = "geni_failed", "it burns"
    before = server.slivers()
    with pytest.raises(Refused, match="it burns") as caught:
        driver.create(wall.inputs)
    assert "gpubed down" in caught.value.hint
    assert server.slivers() == before


def test_nodes_in_use_are_not_given_back_for_another_request(server, wall, driver):
    """Pulumi's state was lost, the cluster's own folder was not."""
    up(wall, driver)
    before = set(map(str, server.slivers()))
    _meet(server, wall, "node-0")
    wall.changes["nodes"] = [{"name": "node", "count": 2}]
    with pytest.raises(Refused, match=r"nodes in use \(node-0\)") as caught:
        driver.create(wall.inputs)
    assert "gpubed down" in caught.value.hint
    assert set(map(str, server.slivers())) == before


def test_nodes_that_nobody_could_look_at_are_not_given_back(server, wall, driver):
    up(wall, driver)
    before = set(map(str, server.slivers()))
    wall.block["patience"] = 3
    server.faults.on("Describe", faults.http(503), nth=1, times=100_000)
    later = threading.Timer(5, server.faults.clear)
    later.start()
    with pytest.raises(GpubedError):
        driver.create(wall.inputs)
    later.join()
    assert set(map(str, server.slivers())) == before


@pytest.mark.parametrize("reap", [0, 3])
def test_a_ticket_that_ran_out_is_asked_for_again(server, wall, driver, monkeypatch, reap):
    """Emulab takes it back some time later; until then it is there, and refused with code 15."""
    monkeypatch.setattr(server.ledger, "_reap", timedelta(seconds=reap))
    genuine = transport.Endpoint.call

    def late(self, method, *args, **options):
        value = genuine(self, method, *args, **options)
        if method == "Allocate" and not server.faults.pending():
            server.clock.advance(601)
            monkeypatch.setattr(transport.Endpoint, "call", genuine)
        return value

    monkeypatch.setattr(transport.Endpoint, "call", late)
    up(wall, driver)


def test_a_spare_node_that_fails_is_named_and_left_out(server, wall, driver):
    wall.changes["nodes"] = [{"name": "node", "count": 3, "min": 2}]
    server.faults.node("node-2", fails="no boot loader", times=3)
    _, result = driver.create(wall.inputs)
    assert "no boot loader" in result["nodes"]["node-2"]["failed"]
    assert "failed" not in result["nodes"]["node-1"]


def test_too_few_nodes_give_everything_back_and_say_why(server, wall, driver):
    server.faults.node("node-2", fails="no boot loader", times=3)
    with pytest.raises(Refused, match=r"2 of 3 nodes.*\n  node-2: .*no boot loader"):
        driver.create(wall.inputs)
    assert server.slivers() == []


def test_a_cluster_of_one_node_has_no_experiment_network(server, wall, driver):
    """Emulab has no link of one end, and gives no hardware to an interface without one."""
    wall.changes["nodes"] = [{"name": "node", "count": 1}]
    wall.changes["networks"] = {"experiment": {"rate": "1 Gbit/s"}}
    id_, result = driver.create(wall.inputs)
    assert "failed" not in result["nodes"]["node-0"]
    assert result["nodes"]["node-0"]["interfaces"] == []
    assert not driver.diff(result, wall.inputs, wall.inputs).replace
    driver.delete(id_, wall.inputs)


def test_a_manifest_that_lacks_a_node_is_one_clear_error(server, wall, driver):
    server.faults.hidden.add("node-1")
    with pytest.raises(Refused, match="node-1: the manifest does not list it"):
        driver.create(wall.inputs)
    assert server.slivers() == []


def test_a_node_that_hangs_is_restarted_and_it_alone(server, wall, driver, monkeypatch):
    """The aggregate calls it ready all the time: what hangs in it, nobody there sees."""
    _, result = driver.create(wall.inputs)
    allocation, restarted, testbed = granted(wall, result), [], wall.testbed
    note = lambda _, sliver: restarted.append(sliver.client_id)  # noqa: E731
    monkeypatch.setattr(server.nodes, "restart", note)
    assert testbed.describe(allocation)["node-1"] == "ready"
    server.faults.on("PerformOperationalAction", faults.busy(), times=1)
    testbed.restart(allocation, allocation.nodes[1])
    assert restarted == ["node-1"]
    assert testbed.describe(allocation) == dict.fromkeys(NODES, "ready")


def test_a_network_that_was_asked_for_and_not_granted_is_refused(server, wall, driver):
    """The reference software leaves links out of the manifest, and says nothing."""
    wall.changes.pop("networks", None)
    if server.site.is_gcf:
        with pytest.raises(Refused, match=r"node-0: .*experiment network that was asked for"):
            driver.create(wall.inputs)
        assert server.slivers() == []
    else:
        up(wall, driver)


def test_nodes_that_were_left_out_join_once_there_are_machines(server, wall, driver):
    """What runs stays as it is; who may not be joined says so, and stays as it is, too."""
    mend = three_machines(server, wall)
    id_, first = driver.create(wall.inputs)
    missing = SliceInputs.model_validate(wall.inputs).missing(first["nodes"])
    assert missing.keys() == {"node-3", "node-4"}
    assert driver.diff(first, wall.inputs, wall.inputs).update == ["nodes"]
    again = driver.update(id_, wall.inputs, wall.inputs)
    assert {n: again["nodes"][n] for n in NODES} == {n: first["nodes"][n] for n in NODES}
    mend()
    result = driver.update(id_, wall.inputs, wall.inputs)
    assert {n: result["nodes"][n] for n in NODES} == {n: first["nodes"][n] for n in NODES}
    if server.site.is_gcf:
        assert [n for n, node in result["nodes"].items() if "failed" in node] == [
            "node-3",
            "node-4",
        ]
    else:
        assert not [node for node in result["nodes"].values() if "failed" in node]
        assert not driver.diff(result, wall.inputs, wall.inputs).update
    driver.delete(id_, wall.inputs)
    assert server.slivers() == []


@with_hardware_types
@pytest.mark.parametrize("call", ["Update", "Provision", "PerformOperationalAction", "Describe"])
@pytest.mark.parametrize("kind", ["lost", "busy", "garbled", "refused"])
def test_nodes_that_run_survive_whatever_goes_wrong_while_others_join(
    server, wall, driver, call, kind
):
    mend = three_machines(server, wall)
    id_, first = driver.create(wall.inputs)
    mend()
    fault = {
        "lost": faults.lost,
        "busy": faults.busy,
        "garbled": faults.truncated,
        "refused": lambda: faults.refused("out of coffee", code=7),
    }[kind]
    server.faults.on(call, fault())
    with suppress(GpubedError):
        driver.update(id_, wall.inputs, wall.inputs)
    result = driver.update(id_, wall.inputs, wall.inputs)
    assert {n: result["nodes"][n] for n in NODES} == {n: first["nodes"][n] for n in NODES}
    assert not [node for node in result["nodes"].values() if "failed" in node]
    driver.delete(id_, wall.inputs)
    assert server.slivers() == []


def test_who_asked_for_it_is_left_alone_with_fewer_nodes(server, wall, driver):
    three_machines(server, wall)
    wall.changes["nodes"][0]["on_failure"] = "leave_out"
    _, result = driver.create(wall.inputs)
    assert not driver.diff(result, wall.inputs, wall.inputs).update
