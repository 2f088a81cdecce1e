"""The faults that the GENI site for tests can be told to have."""

import http.client
import time
import xmlrpc.client
from xml.parsers.expat import ExpatError

import pytest
from lxml import etree

from support.am import AmServer, Ghosts, Limits, clock, faults, xml
from support.am.request import tag
from support.am.witness import RSPEC_VERSION, Witness, rspec, until


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    nodes = Ghosts("wall2.ilabt.example", boot_seconds=0)
    with AmServer(tmp_path_factory.mktemp("am"), nodes=nodes, limits=Limits(delete=0)) as made:
        made.user("alice", passphrase=None)
        yield made


@pytest.fixture
def server(site):
    yield site
    site.faults.clear()
    site.accounts.slices.clear()
    for slice_ in [*site.ledger.slices.values()]:
        until(lambda slice_=slice_: not slice_.starting)
        site.ledger.delete(slice_, blocking=True)


@pytest.fixture
def alice(server):
    return Witness(server, server.users["alice"])


def test_an_answer_is_lost_after_the_call_took_effect(server, alice):
    made, credential = alice.slice()
    server.faults.on("Allocate", faults.lost())
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        alice.am.Allocate(made, credential, rspec("w1"), {})
    assert [s.client_id for s in server.slivers()] == ["w1"]
    assert server.calls[-1].code == 0
    again = alice.am.Allocate(made, credential, rspec("w1"), {})
    assert (again.code, again.output) == (2, "New rspec is not disjoint from sliver")


def test_a_connection_is_reset_before_the_call_has_an_effect(server, alice):
    made, credential = alice.slice()
    server.faults.on("Allocate", faults.reset())
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        alice.am.Allocate(made, credential, rspec("w1"), {})
    assert server.slivers() == []
    assert server.faults.pending() == []


@pytest.mark.parametrize(("after", "held"), [(False, 0), (True, 1)])
def test_an_error_of_http_comes_before_or_after_the_effect(server, alice, after, held):
    made, credential = alice.slice()
    server.faults.on("Allocate", faults.http(502, after=after))
    with pytest.raises(xmlrpc.client.ProtocolError) as caught:
        alice.am.Allocate(made, credential, rspec("w1"), {})
    assert caught.value.errcode == 502
    assert len(server.slivers()) == held


def test_a_late_answer_is_a_time_out_of_the_client(server, alice):
    made, credential = alice.slice()
    server.faults.on("Allocate", faults.slow(3))
    hasty = Witness(server, alice.login, timeout=1.5)
    with pytest.raises(TimeoutError):
        hasty.am.Allocate(made, credential, rspec("w1"), {})
    assert len(server.slivers()) == 1


def test_a_stalled_call_is_looked_at_late(server, alice):
    server.faults.on("GetVersion", faults.stalled(0.2))
    started = time.monotonic()
    alice.am.GetVersion()
    assert time.monotonic() - started > 0.2


def test_the_nth_call_is_busy_refused_or_expired(server, alice):
    made, credential = alice.slice()
    alice.am.Allocate(made, credential, rspec("w1"), {})
    server.faults.on("Status", faults.busy(), nth=2)
    server.faults.on("am/Status", faults.refused("no more quota"), nth=3)
    server.faults.on("*", faults.expired(), nth=4)
    seen = [alice.am.Status([made], credential, {}) for _ in range(5)]
    assert [answer.code for answer in seen] == [0, 14, 7, 1, 0]
    assert seen[1].output == "resource is busy; try again later"
    assert seen[2].output == "no more quota"
    assert "expired at" in seen[3].output


def test_a_renewal_is_granted_shorter_than_asked(server, alice):
    made, credential = alice.up("exp1", rspec("w1"))
    asked = clock.parse("2030-01-01T00:00:00Z")
    asked = server.clock.now() + (asked - asked) + clock.timedelta(hours=5)
    server.faults.on("Renew", faults.shortened(3600))
    granted = alice.am.Renew([made], credential, clock.stamp(asked), {}).value[0]["geni_expires"]
    assert clock.stamp(asked - clock.timedelta(hours=1)) == granted
    server.faults.on("update", faults.shortened(3600))
    wanted = {"fields": {"SLICE_EXPIRATION": clock.stamp(asked + clock.timedelta(hours=5))}}
    alice.sa.update("SLICE", made, credential, wanted)
    found = alice.sa.lookup("SLICE", credential, {"match": {"SLICE_URN": made}}).value[made]
    assert found["SLICE_EXPIRATION"] == clock.stamp(asked + clock.timedelta(hours=4))


def test_a_manifest_lacks_a_host(server, alice):
    made, credential = alice.up("exp1", rspec("w1", "w2"))
    server.faults.hidden.add("w2")
    found = alice.am.Describe([made], credential, {}).value
    nodes = etree.fromstring(found["geni_rspec"].encode()).findall(tag("node"))
    assert [node.get("client_id") for node in nodes] == ["w1"]
    assert {"w1", "w2"} <= {sliver["geni_client_id"] for sliver in found["geni_slivers"]}


def test_documents_come_with_entities(server, alice):
    made, credential = alice.up("exp1", rspec("w1"))
    server.faults.on("Describe", faults.entities("rspec"))
    text = alice.am.Describe([made], credential, {}).value["geni_rspec"]
    assert "<note>&i;&file;</note></rspec>" in text
    with pytest.raises(xml.Unparsable):
        xml.parse(text)
    server.faults.on("Status", faults.entities())
    body = raw(alice, "Status", [made], credential, {})
    assert body.count(b"<!ENTITY") == 10


def test_an_advertisement_is_as_big_as_it_is_told(server, alice):
    _, credential = alice.slice()
    server.faults.on("ListResources", faults.huge(2 << 20))
    assert len(alice.am.ListResources(credential, RSPEC_VERSION).value) > 2 << 20
    assert len(alice.am.ListResources(credential, RSPEC_VERSION).value) < 1 << 20


@pytest.mark.parametrize("fault", [faults.not_utf8(), faults.truncated(), faults.not_xml()])
def test_answers_are_no_proper_xml(server, alice, fault):
    server.faults.on("GetVersion", fault)
    with pytest.raises((ExpatError, xmlrpc.client.Error)):
        alice.am.GetVersion()
    assert alice.am.GetVersion().code == 0


def raw(witness, method, *arguments):
    """Returns the bytes of an answer."""
    connection = witness.am._proxy("transport").make_connection(witness.server.am_url.split("/")[2])
    connection.request(
        "POST", "/protogeni/xmlrpc/am/3.0", xmlrpc.client.dumps(arguments, method).encode()
    )
    return connection.getresponse().read()
