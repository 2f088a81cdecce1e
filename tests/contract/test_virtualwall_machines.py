"""Which machines a site has: too few, wrong ones, ones that come back later."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gpubed.core import progress
from gpubed.core.errors import GpubedError, Refused
from gpubed.spec.clusterspec import model
from gpubed.testbeds.specification import load
from support.am import faults
from support.wall import NAME
from support.wall_site import up, with_hardware_types


@with_hardware_types
def test_fewer_machines_than_wanted_are_taken_when_they_will_do(server, wall, driver):
    wall.block["hardware"] = {"node": {"type": "pcgen07-gpu1080"}}
    wall.changes["nodes"] = [{"name": "node", "count": 5, "min": 2}]
    _, result = driver.create(wall.inputs)
    assert [name for name, node in result["nodes"].items() if "failed" in node] == [
        "node-3",
        "node-4",
    ]
    assert "pcgen07-gpu1080" in result["nodes"]["node-4"]["failed"]
    assert driver.read("", wall.inputs) == result


@with_hardware_types
@pytest.mark.parametrize(
    ("code", "said"),
    [
        (25, "Not enough bandwidth to connect some nodes"),
        (26, "*** No physical nodes with fast enough interfaces found"),
    ],
)
def test_a_rate_that_links_cannot_carry_is_no_lack_of_machines(server, wall, driver, code, said):
    """Fewer nodes would not make their interfaces faster."""
    wall.changes["nodes"] = [{"name": "node", "count": 3, "min": 1}]
    server.faults.on("Allocate", faults.refused(said, code=code), times=1)
    with pytest.raises(Refused, match=said.strip("* ")) as refused:
        driver.create(wall.inputs)
    assert "networks.experiment.rate" in refused.value.hint
    assert server.slivers() == []


@with_hardware_types
def test_machines_that_are_not_there_are_refused_with_the_mappers_words(server, wall, driver):
    wall.block["hardware"] = {"node": {"type": "pcgen07-gpu1080"}}
    wall.changes["nodes"] = [{"name": "node", "count": 5}]
    [lack] = wall.testbed.fits(wall.plan)
    assert lack.message == "5 machines of type pcgen07-gpu1080 are wanted, 3 are free"
    assert "gpubed resources" in lack.fix
    with pytest.raises(Refused, match=r"not enough nodes.*pcgen07-gpu1080"):
        driver.create(wall.inputs)
    assert server.slivers() == []


@with_hardware_types
def test_the_node_whose_own_machine_cannot_be_had_is_left_out(server, wall, driver):
    """Another one would have its machine, and be missed without need."""
    machines = [m for m in server.inventory.machines if m.type == "pcgen05"][:3]
    names = [f"urn:publicid:IDN+{server.site.authority}+node+{m.name}" for m in machines]
    wall.block["hardware"] = {"node": {"machines": names}}
    wall.changes["nodes"] = [{"name": "node", "count": 3, "min": 2}]
    machines[1].broken = True
    id_, result = driver.create(wall.inputs)
    assert [name for name, node in result["nodes"].items() if "failed" in node] == ["node-1"]
    assert "Could not map node-1" in result["nodes"]["node-1"]["failed"]
    machines[1].broken = False
    result = driver.update(id_, wall.inputs, wall.inputs)
    assert not [node for node in result["nodes"].values() if "failed" in node]


def test_an_aggregate_that_does_not_answer_is_no_lack_of_machines(wall):
    where = wall.block["aggregate"] | {"url": "https://127.0.0.1:1/protogeni/xmlrpc/am/3.0"}
    wall.block |= {"aggregate": where, "patience": 1}
    [lack] = wall.testbed.fits(wall.plan)
    assert "does not answer" in lack.message
    assert "correct its URL in cluster.yml" in lack.fix


@with_hardware_types
def test_machines_of_a_cluster_are_free_for_what_replaces_it(server, wall, driver):
    wall.block["hardware"] = {"node": {"type": "pcgen07-gpu1080"}}
    up(wall, driver)  # all that there are
    testbed = wall.testbed
    wall.changes["networks"] = {"experiment": {"rate": "100 Mbit/s"}}
    assert (testbed.fits(wall.plan), testbed.refusals(wall.plan)) == ([], [])
    wall.changes["nodes"] = [{"name": "node", "count": 4}]
    [finding] = testbed.refusals(wall.plan)
    assert finding.message == "4 machines of type pcgen07-gpu1080 are wanted, 3 are free"
    assert finding.fix == f"gpubed resources {NAME} lists what is free"
    wall.block["hardware"] = {"node": {"type": "pc"}}
    assert testbed.refusals(wall.plan) == [], "every whole machine is one"


@with_hardware_types
@pytest.mark.parametrize("least", [3, 2])
def test_machines_that_were_given_back_are_waited_for(
    server, wall, driver, tmp_path, monkeypatch, least
):
    """A changed cluster wants those that it has just had: the testbed loads them anew first."""
    wall.block |= {"hardware": {"node": {"type": "pcgen07-gpu1080"}}}
    wall.changes["nodes"] = [{"name": "node", "count": 3, "min": least}]
    id_ = up(wall, driver)
    monkeypatch.setattr(server.inventory, "_reload", 10.0)
    monkeypatch.setenv(progress.VARIABLE, str(tmp_path / "events"))
    driver.delete(id_, wall.inputs)
    up(wall, driver)
    assert "are reloaded" in (tmp_path / "events").read_text()


@with_hardware_types
def test_what_is_left_of_a_lease_that_ended_is_waited_for(server, wall, driver):
    """Emulab takes its books in order some minutes later; until then, the name is taken."""
    up(wall, driver)
    for slice_ in [*server.accounts.slices.values(), *server.ledger.slices.values()]:
        slice_.expires = server.clock.now() - timedelta(minutes=1)
    gone = "Duplicate slice URN already exists here"
    server.faults.on("geni-sa/create", faults.refused("URN already a registered slice", 2), times=2)
    server.faults.on("Describe", faults.refused(gone, 1), times=2)
    up(wall, driver)


@with_hardware_types
def test_the_name_of_a_slice_that_was_never_ours_is_not_waited_for(server, wall, driver):
    server.faults.on("geni-sa/create", faults.refused("URN already a registered slice", 2), times=9)
    with pytest.raises(Refused, match="already a registered slice") as refused:
        driver.create(wall.inputs)
    assert "wait some minutes" in refused.value.hint


@with_hardware_types
def test_free_machines_are_counted_by_type(server, wall, driver):
    spec = model().model_validate({"name": NAME, **load(wall.paths.spec).model_dump(mode="json")})
    testbed = wall.testbed
    offers = {offer.name: offer for offer in testbed.resources(spec)}
    assert (offers["pcgen07-gpu1080"].free, offers["pcgen07-gpu1080"].gpus) == (3, 1)
    assert offers["pcgen05"].free == 8
    up(wall, driver)
    offers = {offer.name: offer for offer in testbed.resources(spec)}
    assert (offers["pcgen05"].free, offers["pcgen05"].total) == (5, 8)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (lambda: faults.huge(50 << 20), "larger than 32 MiB"),
        (lambda: faults.entities("rspec"), "entities"),
        (faults.not_utf8, "UTF-8"),
        (faults.not_xml, "XML"),
        (faults.truncated, "XML|answer"),
    ],
)
def test_a_hostile_advertisement_is_one_clear_error(server, wall, fault, said):
    server.faults.on("ListResources", fault(), nth=1, times=10)
    with pytest.raises(GpubedError, match=said):
        wall.testbed.resources(load(wall.paths.spec))


def test_a_group_without_hardware_is_compared_with_what_is_free(server, wall):
    wall.block["hardware"] = {}
    wall.changes["nodes"] = [{"name": "node", "count": 99}]
    free = len(server.inventory.machines)
    said = f"99 machines of any type are wanted, {free} are free"
    assert [lack.message for lack in wall.testbed.fits(wall.plan)] == [said]


def test_machines_without_a_hardware_type_are_counted_too(server, wall):
    offers = wall.testbed.resources(load(wall.paths.spec))
    if server.site.is_gcf:
        [offer] = offers
        assert (offer.name, offer.total) == ("(any)", len(server.inventory.machines))
        assert "name none in backend.hardware" in offer.note
    else:
        assert "(any)" not in [offer.name for offer in offers]


def test_who_waits_for_nodes_is_told_for_how_many(server, wall, driver, monkeypatch):
    """Bare metal takes up to 25 minutes: silence would look as if nothing happened."""
    told = []
    monkeypatch.setattr(progress, "_listener", told.append)
    for name, seconds in (("node-0", 3), ("node-1", 6), ("node-2", 3)):
        server.faults.node(name, slow=seconds)
    up(wall, driver)
    said = [note["message"] for note in told if "booted" in note["message"]]
    assert said[0].startswith("3 of 3 nodes are being loaded and booted; waiting for ")
    assert said[-1].startswith("1 of 3 nodes are ")
    assert len(said) == len(set(said)) <= 3
