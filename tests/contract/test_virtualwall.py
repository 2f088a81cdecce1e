"""The virtualwall backend's slice, against a GENI site that verifies what it is sent.

The server keeps its own record of what is allocated: that decides, not the client.
"""

from __future__ import annotations

import functools
import http.client
import itertools
import os
import random
import signal
import socket
import threading
import time
import uuid
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import pytest
import yaml

from gpubed.backends.virtualwall import (
    acquaintance,
    authority,
    doctor,
    leases,
    login,
    transport,
    verdict,
)
from gpubed.backends.virtualwall.connection import connect
from gpubed.backends.virtualwall.faults import Unanswered
from gpubed.backends.virtualwall.slice import SliceDriver
from gpubed.backends.virtualwall.slice_inputs import SliceInputs, description
from gpubed.backends.virtualwall.urn import slice_name
from gpubed.core import progress
from gpubed.core.errors import GpubedError, PrerequisiteMissing, Refused
from gpubed.core.paths import Project
from gpubed.nodes.allocation import Allocation
from gpubed.spec.clusterspec import model
from gpubed.testbeds.specification import load
from support.am import AmServer, Ghosts, Limits, Site, faults
from support.am.witness import Witness, rspec
from support.wall import NAME, Wall, document

NODES = ("node-0", "node-1", "node-2")
# What is kept of a node that was reached once.
KNOWN = {
    "id": "urn:publicid:IDN+wall2.ilabt.example+sliver+1",
    "control_address": "192.0.2.1",
    "experiment_address": None,
    "port": 22,
    "user": "alice",
    "host_keys": ["ssh-ed25519 AAAA"],
    "via": [],
}
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
GARBLED = (
    faults.not_xml,
    faults.not_utf8,
    lambda: faults.entities("answer"),
    faults.truncated,
)


FACES = {"emulab": Site(), "gcf": Site.gcf()}
# What the reference aggregate has not: hardware types, networks.
PLAIN = {"backend": {"hardware": {}}, "networks": {"experiment": None}}
with_hardware_types = pytest.mark.parametrize("server", ["emulab"], indirect=True)


@pytest.fixture(params=FACES)
def server(request, tmp_path):
    """A site that answers as Emulab does, and one as GENI's reference software did."""
    site, nodes = FACES[request.param], Ghosts("wall2.ilabt.example", boot_seconds=0.1)
    with AmServer(tmp_path / "am", site=site, limits=Limits(delete=0.1), nodes=nodes) as made:
        yield made


@pytest.fixture
def wall(server, tmp_path, monkeypatch):
    monkeypatch.setenv("GPUBED_ROOT", "")  # so that what a test sets is undone
    monkeypatch.setattr(doctor, "_has_ipv6", lambda: True)  # whatever this machine has
    return a_wall(server, tmp_path, server.user("alice", passphrase="open sesame"))


def a_wall(server, tmp_path, user):
    return Wall(tmp_path / "project", server, user, **(PLAIN if server.site.is_gcf else {}))


@pytest.fixture
def driver(tmp_path):
    return SliceDriver(Project(tmp_path / "project").cluster(NAME))


def _slice(server):
    [urn] = server.ledger.slices
    return urn


def _name(sliver):
    return sliver.request.client_id


def up(wall, driver):
    """Bring a slice up and return its id; all nodes must be there."""
    id_, result = driver.create(wall.inputs)
    assert sorted(result["nodes"]) == ["node-0", "node-1", "node-2"]
    assert not [node for node in result["nodes"].values() if "failed" in node]
    return id_


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


def _killed_at(number, work, *, answered):
    """Do the work in a process that is killed at its n-th call: before it is sent, or once
    it was answered. Says whether it came so far."""
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            _kill_self_at(number, answered)
            work()
            os._exit(0)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), "it ended in another way"
    return status == signal.SIGKILL


def _kill_self_at(number, answered):
    genuine, calls = transport.Endpoint.call, itertools.count(1)

    def call(self, *args: Any, **options: Any) -> Any:
        last = next(calls) == number
        if last and not answered:
            os.kill(os.getpid(), signal.SIGKILL)
        value = genuine(self, *args, **options)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return value

    transport.Endpoint.call = call


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
        killed += _killed_at(number, life_and_death, answered=answered)
        id_ = up(wall, driver)
        assert len(set(map(str, server.slivers()))) == len(server.slivers())
        driver.delete(id_, wall.inputs)
        assert server.slivers() == []
    # How often a life asks whether nodes are ready differs a little, and where there is a slice
    # already it is not made.
    assert killed >= len(places) - 6


def test_another_request_than_an_interrupted_run_had_is_asked_for_anew(server, wall, driver):
    up(wall, driver)
    wall.changes["nodes"] = [{"name": "node", "count": 2}]
    _, result = driver.create(wall.inputs)
    assert sorted(result["nodes"]) == ["node-0", "node-1"]


def test_a_failed_start_of_a_killed_run_is_given_back_as_that_of_any_other(server, wall, driver):
    """Else each run after it would find the same node failed, and end there."""
    server.faults.node("node-2", fails="no boot loader")
    life = [call.method for call in server.calls]
    with pytest.raises(Refused):
        up(wall, driver)
    start = [call.method for call in server.calls[len(life) :]].index("PerformOperationalAction")
    server.faults.node("node-2", fails="no boot loader")
    assert _killed_at(start + 1, lambda: up(wall, driver), answered=True)
    while any(sliver.operational == "geni_configuring" for sliver in server.slivers()):
        time.sleep(0.05)
    with pytest.raises(Refused, match="no boot loader") as caught:
        driver.create(wall.inputs)
    assert "gpubed up" in caught.value.hint
    assert server.slivers() == []
    up(wall, driver)


def test_a_node_in_use_that_failed_costs_the_others_nothing(server, wall, driver):
    """Pulumi's state was lost, and one of the nodes is broken by now."""
    up(wall, driver)
    acquaintance.save(wall.paths, "node-0", KNOWN)
    [broken] = [s for s in server.ledger.find(_slice(server)).all_slivers() if _name(s) == "node-2"]
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
    acquaintance.save(wall.paths, "node-0", KNOWN)
    wall.changes["nodes"] = [{"name": "node", "count": 2}]
    with pytest.raises(Refused, match="node-0, in use") as caught:
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
def test_machines_that_nobody_wants_are_not_missing(server, wall):
    wall.changes["nodes"] = [{"name": "node", "count": 30}]
    [lack] = wall.testbed.fits(wall.plan)
    assert lack.message == "30 machines of type pcgen05 are wanted, 8 are free"


def test_a_plan_without_a_login_says_how_to_get_one(server, wall):
    """That it does not fit now would be no help, and nobody knows."""
    wall.block["login"] = str(wall.paths.state / "none.pem")
    with pytest.raises(PrerequisiteMissing) as missing:
        wall.testbed.fits(wall.plan)
    assert "backend.login" in missing.value.hint


def test_a_manifest_that_lacks_a_node_is_one_clear_error(server, wall, driver):
    server.faults.hidden.add("node-1")
    with pytest.raises(Refused, match="node-1: the manifest does not list it"):
        driver.create(wall.inputs)
    assert server.slivers() == []


@with_hardware_types
def test_the_node_whose_own_machine_cannot_be_had_is_left_out(server, wall, driver):
    """Another one would have its machine, and be missed without need."""
    machines = [m for m in server.inventory.machines if m.type.name == "pcgen05"][:3]
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
    monkeypatch.setattr(server.inventory, "_reload", 2.0)
    monkeypatch.setenv(progress.VARIABLE, str(tmp_path / "events"))
    driver.delete(id_, wall.inputs)
    up(wall, driver)
    assert "are loaded anew" in (tmp_path / "events").read_text()


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
def test_machines_that_do_not_come_back_are_given_up(server, wall, driver):
    wall.block |= {"hardware": {"node": {"type": "pcgen07-gpu1080"}}, "patience": 6}
    wall.changes["nodes"] = [{"name": "node", "count": 3, "min": 2}]
    driver.delete(up(wall, driver), wall.inputs)
    next(m for m in server.inventory.machines if m.type.gpus == 1).broken = True
    _, result = driver.create(wall.inputs)
    assert [name for name, node in result["nodes"].items() if "failed" in node] == ["node-2"]


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


def test_renewals_are_reported_as_granted(server, wall, driver):
    id_ = up(wall, driver)
    there = connect(wall.plan.spec.backend)
    before = leases.granted(there, id_)
    asked = before + timedelta(hours=5)
    assert leases.renew(there, id_, asked) == asked
    server.faults.on("Renew", faults.shortened(3600), nth=1, times=1)
    less = leases.renew(there, id_, asked + timedelta(hours=5))
    assert less < asked + timedelta(hours=5)
    assert less == leases.granted(there, id_)


def test_a_lease_that_lasts_longer_is_never_shortened(server, wall, driver):
    id_ = up(wall, driver)
    there = connect(wall.plan.spec.backend)
    before = leases.granted(there, id_)
    assert leases.renew(there, id_, before - timedelta(hours=1)) == before
    assert leases.granted(there, id_) == before


def test_a_refused_renewal_says_so_and_until_when_the_lease_is(server, wall, driver):
    id_ = up(wall, driver)
    there = connect(wall.plan.spec.backend)
    before = leases.granted(there, id_)
    server.faults.on("Renew", faults.refused("pre-reserved", code=7), nth=1, times=1)
    with pytest.raises(Refused, match=r"stays as it was.*pre-reserved") as caught:
        leases.renew(there, id_, before + timedelta(hours=5))
    assert "gpubed renew" in caught.value.hint
    assert leases.granted(there, id_) == before


def test_an_expired_slice_is_gone_and_can_be_had_again(server, wall, driver):
    id_ = up(wall, driver)
    server.clock.advance(2 * 86400)
    assert driver.read(id_, wall.inputs) is None
    driver.delete(id_, wall.inputs)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"days": -1}, "expired on"),
        ({"foreign": True}, "does not accept the login certificate"),
    ],
)
def test_a_login_that_will_not_do_is_refused_before_anything_is_made(
    server, tmp_path, driver, monkeypatch, options, said
):
    monkeypatch.setenv("GPUBED_ROOT", "")
    wall = Wall(tmp_path / "project", server, server.user("mallory", **options))
    with pytest.raises(PrerequisiteMissing, match=said):
        driver.create(wall.inputs)
    assert server.slivers() == []
    findings = wall.testbed.doctor(load(wall.paths.spec))
    assert [f for f in findings if not f.ok and said in f.message]


@pytest.mark.parametrize("pause", [0.05, 0.5])
def test_a_login_is_known_to_be_refused_also_by_a_server_that_has_hung_up(
    server, tmp_path, driver, monkeypatch, pause
):
    """With TLS 1.3 it looks at our certificate once we are connected, and may be faster than us."""
    connect_ = http.client.HTTPSConnection.connect

    def slowly(connection):
        connect_(connection)
        time.sleep(pause)

    monkeypatch.setenv("GPUBED_ROOT", "")
    monkeypatch.setattr(http.client.HTTPSConnection, "connect", slowly)
    wall = Wall(tmp_path / "project", server, server.user("mallory", foreign=True))
    for _ in range(5):
        with pytest.raises(PrerequisiteMissing, match="does not accept the login certificate"):
            driver.create(wall.inputs)


def test_a_server_that_no_bundle_vouches_for_is_never_told_anything(server, wall, driver):
    wall.block["ca"] = str(wall.user.pem)  # a certificate, but not of who signed the server's
    with pytest.raises(PrerequisiteMissing, match="cannot be trusted"):
        driver.create(wall.inputs)
    assert server.calls == []
    with pytest.raises(PrerequisiteMissing, match="cannot be trusted"):
        wall.testbed.fits(wall.plan)


def test_the_oldest_form_of_a_login_works_too(server, tmp_path, driver, monkeypatch):
    monkeypatch.setenv("GPUBED_ROOT", "")
    user = server.user("old", traditional=True, passphrase="x y z")
    up(a_wall(server, tmp_path, user), driver)


def test_doctor_finds_every_line_in_order(server, wall):
    findings = wall.testbed.doctor(load(wall.paths.spec))
    assert [f.id for f in findings if not f.ok] == []
    looked_at = {f.id.removeprefix("virtualwall.") for f in findings}
    about = {"login", "key", "aggregate", "clock", "members", "project", "images", "way"}
    assert looked_at == about


def test_a_login_that_was_renewed_is_the_bastions_from_the_next_look_on(server, wall, driver):
    """Nothing of the cluster has changed by then, so nothing of it is made anew."""
    wall.block["bastion"] = {"host": "127.0.0.1", "host_keys": ["ssh-ed25519 AAAA"]}
    wall.user = server.user("alice", passphrase=None)
    wall.block = {**wall.block, "login": str(wall.user.pem)}
    wall.block.pop("passphrase_file")
    wall.paths.spec.write_text(yaml.safe_dump(document(wall.block, **wall.changes)))
    driver.create(wall.inputs)
    server.user("alice", passphrase=None)
    head = {"name": "node-0", "group": "node", "role": "head", **KNOWN}
    granted = {"cluster": NAME, "uuid": wall.uuid, "backend": "virtualwall", "nodes": [head]}
    control = {"subnet": "192.0.2.0/24"}
    testbed = wall.testbed
    testbed.describe(Allocation.model_validate(granted | {"control": control}))
    copy = (wall.paths.secrets / "virtualwall-login").read_bytes()
    assert login.public_key(copy) == login.load(wall.plan.spec.backend).public_key


def granted(wall, result):
    """Return what was granted, as far as the aggregate looks at it."""
    slivers = {name: result["nodes"][name]["sliver"] for name in NODES}
    nodes = [
        KNOWN | {"name": name, "id": slivers[name], "group": "node", "role": "worker"}
        for name in NODES
    ]
    known = {"cluster": NAME, "uuid": wall.uuid, "backend": "virtualwall", "nodes": nodes}
    return Allocation.model_validate(known | {"control": {"subnet": "192.0.2.0/24"}})


def test_a_node_that_hangs_is_restarted_and_it_alone(server, wall, driver, monkeypatch):
    """The aggregate calls it ready all the time: what hangs in it, nobody there sees."""
    _, result = driver.create(wall.inputs)
    allocation, restarted, real = granted(wall, result), [], server.nodes.restart

    def restart(slice_, sliver):
        restarted.append(_name(sliver))
        real(slice_, sliver)

    monkeypatch.setattr(server.nodes, "restart", restart)
    testbed = wall.testbed
    assert testbed.describe(allocation)["node-1"] == "ready"
    server.faults.on("PerformOperationalAction", faults.busy(), times=1)
    testbed.restart(allocation, allocation.nodes[1])
    assert restarted == ["node-1"]
    assert testbed.describe(allocation) == dict.fromkeys(NODES, "ready")


def test_a_restart_that_is_refused_says_so(server, wall, driver):
    _, result = driver.create(wall.inputs)
    allocation = granted(wall, result)
    server.faults.on("PerformOperationalAction", faults.refused("not on this type", 7), times=9)
    with pytest.raises(Refused, match="not on this type"):
        wall.testbed.restart(allocation, allocation.nodes[1])


def test_doctor_tells_which_disk_images_are_loaded_and_offered(server, wall):
    findings = wall.testbed.doctor(wall.plan.spec)
    [said] = [f.message for f in findings if f.id == "virtualwall.images"]
    assert said.startswith("debian-12 is the testbed's default")
    assert server.site.is_gcf or all(image in said for image in server.site.image_urns)


def test_doctor_names_the_bastion_where_there_is_no_ipv6(server, wall, monkeypatch):
    monkeypatch.setattr(doctor, "_has_ipv6", lambda: False)
    findings = wall.testbed.doctor(wall.plan.spec)
    [wrong] = [f for f in findings if not f.ok]
    assert "no IPv6 address" in wrong.message
    assert "backend.bastion" in wrong.fix


def test_doctor_names_a_clock_that_is_wrong(server, wall, monkeypatch):
    monkeypatch.setattr(transport, "_ahead", lambda _: -600.0)
    findings = wall.testbed.doctor(load(wall.paths.spec))
    [wrong] = [f for f in findings if not f.ok]
    assert "600 s ahead" in wrong.message


class Ahead(datetime):
    """This machine's clock, ahead by more than any lease here."""

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        """Return the time, as it is not."""
        return datetime.now(tz) + timedelta(days=30)


def test_a_clock_that_is_ahead_ends_no_slice(server, wall, driver, monkeypatch):
    """Else `down` would take what runs for over, and forget it."""
    id_ = up(wall, driver)
    monkeypatch.setattr(authority, "datetime", Ahead)
    monkeypatch.setattr(transport, "datetime", Ahead)
    assert driver.read(id_, wall.inputs) is not None
    driver.delete(id_, wall.inputs)
    assert server.slivers() == []


@pytest.mark.parametrize("status", [401, 403])
def test_a_server_that_turns_the_login_away_says_what_to_get(server, wall, driver, status):
    server.faults.on("geni-sa/lookup", faults.http(status))
    with pytest.raises(PrerequisiteMissing, match=str(status)) as caught:
        driver.create(wall.inputs)
    assert "new login certificate" in caught.value.hint


def test_a_credential_that_is_over_at_once_leads_to_the_clock(server, wall, driver):
    server.faults.on("geni-sa/get_credentials", faults.expired())
    with pytest.raises(Refused, match="expired") as caught:
        driver.create(wall.inputs)
    assert "gpubed doctor CLUSTER" in caught.value.hint


@pytest.mark.parametrize("garbled", [*GARBLED, faults.reset])
def test_what_is_no_answer_says_what_to_do(server, wall, driver, garbled):
    wall.block["patience"] = 1
    server.faults.on("geni-ma/get_credentials", garbled(), times=None)
    with pytest.raises(GpubedError) as caught:
        driver.create(wall.inputs)
    assert "try again" in caught.value.hint


@with_hardware_types
def test_another_login_than_the_one_that_made_the_slice_is_told_so(server, wall, driver):
    id_ = up(wall, driver)
    server.faults.on("geni-sa/get_credentials", faults.refused("No privilege on slice", code=3))
    with pytest.raises(Refused, match="No privilege") as caught:
        driver.read(id_, wall.inputs)
    assert "backend.login" in caught.value.hint


def a_colleagues_slice(server, wall, *, cluster=NAME, member=False):
    """Make a slice of the cluster's name for somebody else; returns its URN."""
    colleague = Witness(server, server.user("bob", passphrase=None))
    name = slice_name(NAME, wall.uuid)
    labels = {"SLICE_DESCRIPTION": description(cluster, str(uuid.uuid4()))} if cluster else {}
    made, credential = colleague.slice(name, **labels)
    if member:
        added = {"members_to_add": [{"SLICE_MEMBER": wall.user.urn, "SLICE_ROLE": "MEMBER"}]}
        colleague.sa.modify_membership("SLICE", made, credential, added)
    assert not colleague.am.Allocate(made, credential, rspec("his"), {}).code
    return made


@pytest.mark.parametrize("cluster", [NAME, "another", ""])
def test_a_slice_of_somebody_elses_is_refused_and_keeps_its_nodes(server, wall, driver, cluster):
    """Also where it carries no labels of ours: then nobody can tell whose its nodes are."""
    a_colleagues_slice(server, wall, cluster=cluster, member=True)
    with pytest.raises(Refused, match=r"belongs to another cluster|whose they are"):
        driver.create(wall.inputs)
    testbed = wall.testbed
    for thing in testbed.existing():
        assert thing.uuid != wall.uuid
    driver.delete("", wall.inputs)
    assert [sliver.client_id for sliver in server.slivers()] == ["his"]


def test_a_colleagues_cluster_that_is_closed_to_us_is_said_and_passed_over(
    server, wall, driver, tmp_path, monkeypatch
):
    """The reference software lists it and refuses its credential, Emulab tells its name alone."""
    id_ = up(wall, driver)
    colleague, theirs = Witness(server, server.user("bob", passphrase=None)), str(uuid.uuid4())
    labels = {"SLICE_DESCRIPTION": description(NAME, theirs)}
    colleague.slice(slice_name(NAME, theirs), **labels)
    colleague.slice("something-else")
    monkeypatch.setenv(progress.VARIABLE, str(tmp_path / "events"))
    assert [thing.id for thing in wall.testbed.existing()] == [id_]
    said = (tmp_path / "events").read_text()
    assert f"slice {slice_name(NAME, theirs)} is somebody else's and is passed over" in said
    assert "something-else" not in said
    findings = wall.testbed.doctor(wall.plan.spec)
    assert [finding for finding in findings if not finding.ok] == []


def test_a_closed_slice_of_our_name_is_neither_used_nor_given_back(server, wall, driver):
    """Whoever made it, with another login: only that login can say that its nodes are gone."""
    made = a_colleagues_slice(server, wall)
    with pytest.raises(Refused, match=r"belongs to somebody else|belongs to another cluster"):
        driver.create(wall.inputs)
    driver.delete("", wall.inputs)
    if not server.site.is_gcf:
        with pytest.raises(Refused, match="No privilege"):
            driver.delete(made, wall.inputs)
    assert [sliver.client_id for sliver in server.slivers()] == ["his"]


def test_a_slice_is_called_as_its_authority_says(server, wall, driver):
    """Whatever sub-authorities our name has, and wherever the project's name goes."""
    id_ = up(wall, driver)
    assert [id_] == list(server.accounts.slices)
    wall.paths.state.joinpath("slice.json").unlink()
    assert driver.read(id_, wall.inputs)["slice"] == id_
    assert driver.create(wall.inputs)[0] == id_
    driver.delete(id_, wall.inputs)
    assert server.slivers() == []


def test_a_network_that_was_asked_for_and_not_granted_is_refused(server, wall, driver):
    """The reference software leaves links out of the manifest, and says nothing."""
    wall.changes.pop("networks", None)
    if server.site.is_gcf:
        with pytest.raises(Refused, match=r"node-0: .*experiment network that was asked for"):
            driver.create(wall.inputs)
        assert server.slivers() == []
    else:
        up(wall, driver)


def _three_machines(server, wall):
    """Leave the site three machines for a cluster of five; returns what repairs the others."""
    taken = [m for m in server.inventory.machines if not m.type.virtual][3:]
    for machine in taken:
        machine.broken = True
    wall.block["hardware"] = {}
    wall.changes["nodes"] = [{"name": "node", "count": 5, "min": 2}]

    def mend():
        for machine in taken:
            machine.broken = False

    return mend


def test_nodes_that_were_left_out_join_once_there_are_machines(server, wall, driver):
    """What runs stays as it is; who may not be joined says so, and stays as it is, too."""
    mend = _three_machines(server, wall)
    id_, first = driver.create(wall.inputs)
    assert verdict.missing(first["nodes"], SliceInputs.model_validate(wall.inputs)).keys() == {
        "node-3",
        "node-4",
    }
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
    mend = _three_machines(server, wall)
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
    _three_machines(server, wall)
    wall.changes["nodes"][0]["on_failure"] = "leave_out"
    _, result = driver.create(wall.inputs)
    assert not driver.diff(result, wall.inputs, wall.inputs).update


def test_a_group_without_hardware_is_compared_with_what_is_free(server, wall):
    wall.block["hardware"] = {}
    wall.changes["nodes"] = [{"name": "node", "count": 99}]
    free = sum(not m.type.virtual or server.site.is_gcf for m in server.inventory.machines)
    said = f"99 machines of any type are wanted, {free} are free"
    assert [lack.message for lack in wall.testbed.fits(wall.plan)] == [said]


@with_hardware_types
def test_who_asks_for_one_type_is_told_of_that_alone(server, wall):
    """As many as that are wanted exceed what there is of any type, too."""
    wall.changes["nodes"] = [{"name": "node", "count": 50}]
    said = "50 machines of type pcgen05 are wanted, 8 are free"
    assert [lack.message for lack in wall.testbed.fits(wall.plan)] == [said]


def test_machines_without_a_hardware_type_are_counted_too(server, wall):
    offers = wall.testbed.resources(load(wall.paths.spec))
    if server.site.is_gcf:
        [offer] = offers
        assert (offer.name, offer.total) == ("(any)", len(server.inventory.machines))
        assert "name none in backend.hardware" in offer.note
    else:
        assert "(any)" not in [offer.name for offer in offers]


def test_doctor_names_a_project_that_does_not_exist(server, wall):
    wall.block["project"] = "nosuch"
    findings = wall.testbed.doctor(wall.plan.spec)
    [wrong] = [finding for finding in findings if not finding.ok]
    assert "nosuch: the authority knows no such project" in wrong.message
    assert "backend.project" in wrong.fix


def test_doctor_tells_a_wrong_host_name_from_an_unknown_authority(server, wall):
    wall.block["aggregate"]["url"] = server.am_url.replace("127.0.0.1", "127.1")
    [wrong] = [f for f in wall.testbed.doctor(wall.plan.spec) if not f.ok]
    assert wrong.fix == "its certificate is another host's: correct 127.1 in cluster.yml"


def test_a_name_that_is_taken_is_no_fault_of_the_project(server, wall, driver):
    server.user("carol", passphrase=None, projects=("other",))
    server.accounts.register(server.site.user("carol"), slice_name(NAME, wall.uuid), "other")
    with pytest.raises(Refused, match="already") as refused:
        driver.create(wall.inputs)
    assert "project" not in refused.value.hint


def test_a_lease_longer_than_the_authority_gives_is_told_which_key_to_shorten(wall, driver):
    wall.changes["lease"] = {"duration": "100d"}
    with pytest.raises(Refused, match="maximum number of minutes") as refused:
        driver.create(wall.inputs)
    assert "lease.duration" in refused.value.hint


def test_another_project_is_refused_before_anything_goes(server, wall, driver):
    up(wall, driver)
    wall.block["project"] = "other"
    [finding] = wall.testbed.refusals(wall.plan)
    assert "one of project testproj until it expires" in finding.message
    assert f"gpubed down {NAME}" in finding.fix


def test_who_waits_for_nodes_is_told_for_how_many(server, wall, driver, monkeypatch):
    """Bare metal takes up to 25 minutes: silence would look as if nothing happened."""
    told = []
    monkeypatch.setattr(progress, "_listener", told.append)
    server.faults.node("node-1", slow=1)
    up(wall, driver)
    said = [note["message"] for note in told if "booted" in note["message"]]
    assert said[0].startswith("3 of 3 nodes are being loaded and booted; waiting for ")
    assert said[-1].startswith("1 of 3 nodes are ")
    assert len(said) == len(set(said)) <= 3


def test_doctor_says_what_may_be_wrong_where_nobody_answers(server, wall):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    wall.block["aggregate"]["url"] = f"https://127.0.0.1:{port}/am/3.0"
    findings = wall.testbed.doctor(wall.plan.spec)
    [found] = [f for f in findings if f.id == "virtualwall.aggregate"]
    assert found.message.endswith("does not answer: Connection refused")
    assert f"port {port}" in found.fix


def test_who_waits_for_a_testbed_is_told_what_for(server, wall, monkeypatch):
    told = []
    monkeypatch.setattr(progress, "_listener", told.append)
    server.faults.on("GetVersion", faults.http(503), times=3)
    wall.testbed.resources(load(wall.paths.spec))
    [note] = told
    assert "the aggregate (GetVersion): server unavailable; trying again for" in note["message"]


def test_a_server_that_says_nothing_is_named_long_before_the_time_out(wall, monkeypatch):
    """It takes connections, and TLS waits for its first word."""
    told = threading.Event()
    monkeypatch.setattr(progress, "_listener", lambda _: told.set())
    soon = functools.partial(progress.overdue, after_s=0.01)
    monkeypatch.setattr(transport.progress, "overdue", soon)
    with socket.create_server(("127.0.0.1", 0)) as silent:

        def answer_nothing():
            connection, _ = silent.accept()
            assert told.wait(30)
            connection.close()

        thread = threading.Thread(target=answer_nothing)
        thread.start()
        url = f"https://127.0.0.1:{silent.getsockname()[1]}/"
        endpoint = transport.Endpoint(url, login.context(wall.plan.spec.backend), "the aggregate")
        with pytest.raises(Unanswered):
            endpoint.call("GetVersion")
        thread.join()
    assert told.is_set()
