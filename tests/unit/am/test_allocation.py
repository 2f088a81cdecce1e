"""The GENI site for tests: what may follow what in the life of slivers."""

import base64
import zlib

import pytest
from lxml import etree

from support.am import clock
from support.am.request import tag
from support.am.witness import RSPEC_VERSION, rspec, until


@pytest.mark.process
def test_a_slice_goes_all_the_way_and_leaves_nothing(server, alice, gate):
    made, credential = alice.slice()
    allocated = alice.am.Allocate(made, credential, rspec("w1", "w2"), {})
    assert [s["geni_allocation_status"] for s in allocated.value["geni_slivers"]] == [
        "geni_allocated"
    ] * 2
    assert "geni_operational_status" not in allocated.value["geni_slivers"][0]
    users = [{"urn": alice.login.urn, "keys": ["ssh-rsa AAAA a\n"]}]
    given = alice.am.Provision([made], credential, {**RSPEC_VERSION, "geni_users": users})
    nodes, [link] = given.value["geni_slivers"][:2], given.value["geni_slivers"][2:]
    assert {node["geni_operational_status"] for node in nodes} == {"geni_notready"}
    assert link["geni_operational_status"] == "geni_ready"  # on Emulab a link is a sliver too
    assert alice.start(made, credential).value == 0  # Emulab returns nothing of use
    states = alice.states(made, credential)
    assert (states["w1"], states["w2"]) == ("geni_configuring", "geni_configuring")
    gate.set()
    alice.ready(made, credential)
    assert len(server.slivers()) == 2
    gate.clear()
    deleted = alice.am.Delete([made], credential, {})
    assert [s["geni_allocation_status"] for s in deleted.value] == ["geni_unallocated"] * 3
    assert len(server.slivers()) == 2  # the answer comes first
    assert alice.am.Delete([made], credential, {}).code == 14
    gate.set()
    until(lambda: alice.am.Status([made], credential, {}).code == 12)
    assert server.slivers() == []
    assert server.nodes.running == set()
    assert all(machine.is_free for machine in server.inventory.machines)


def test_the_manifest_says_where_to_log_in_and_what_is_on_the_link(alice):
    made, credential = alice.up("exp1", rspec("w1", "w2"))
    root = etree.fromstring(alice.am.Describe([made], credential, {}).value["geni_rspec"].encode())
    assert (root.get("type"), len(root.findall(tag("node")))) == ("manifest", 2)
    assert etree.QName(root.keys()[-1]).localname == "schemaLocation"
    assert root.values()[-1].endswith("/manifest.xsd")
    node = root.find(tag("node"))
    login = node.find(f"{tag('services')}/{tag('login')}")
    assert (login.get("username"), login.get("port")) == ("alice", "22")
    assert login.get("authentication") == "ssh-keys"
    interface = node.find(tag("interface"))
    assert len(interface.get("mac_address")) == 12
    assert interface.find(tag("ip")).get("address") == "192.168.77.1"
    assert root.find(tag("link")).get("sliver_id")


def test_the_advertisement_counts_what_is_free(server, alice):
    made, credential = alice.slice()

    def free(**options):
        text = alice.am.ListResources(credential, {**RSPEC_VERSION, **options}).value
        if options.get("geni_compressed"):
            text = zlib.decompress(base64.b64decode(text)).decode()
        nodes = etree.fromstring(text.encode()).findall(tag("node"))
        return [
            node.find(tag("available")).get("now")
            for node in nodes
            if node.find(tag("hardware_type")).get("name") == "pcgen07-gpu1080"
        ]

    assert free() == ["true"] * 3
    alice.am.Allocate(made, credential, rspec("w1", kind="pcgen07-gpu1080"), {})
    assert sorted(free()) == ["false", "true", "true"]
    assert free(geni_available=True, geni_compressed=True) == ["true"] * 2
    assert alice.am.ListResources(credential, {}).code == 1


def test_a_promise_holds_ten_minutes(server, alice):
    made, credential = alice.slice()
    answer = alice.am.Allocate(made, credential, rspec("w1"), {})
    ends = clock.parse(answer.value["geni_slivers"][0]["geni_expires"])
    assert 590 < (ends - server.clock.now()).total_seconds() <= 600
    server.clock.advance(601)
    assert server.slivers() == []
    answer = alice.am.Provision([made], credential, RSPEC_VERSION)
    assert (answer.code, answer.output) == (
        7,
        "No slice here that matches the provided credentials",
    )


def test_a_provisioned_slice_outlives_the_promise_but_not_its_end(server, alice):
    alice.ready(*alice.up("exp1", rspec("w1")))
    server.clock.advance(601)
    assert [s.operational for s in server.slivers()] == ["geni_ready"]
    server.clock.advance(6 * 3600)
    until(lambda: not server.slivers())
    assert server.nodes.running == set()


def test_what_is_short_is_said_in_the_mapper_s_words(alice):
    made, credential = alice.slice()

    def refusal(request):
        answer = alice.am.Allocate(made, credential, request, {})
        return answer.code, answer.output

    assert refusal(rspec("a", "b", "c", kind="pcgen08-gpu5090")) == (
        26,
        "*** 3 nodes of type pcgen08-gpu5090 requested, "
        "but only 2 available nodes of type pcgen08-gpu5090 found",
    )
    assert refusal(rspec("a", kind="cray")) == (
        26,
        "*** No available physical nodes of type cray found",
    )
    urn = "urn:publicid:IDN+wall2.ilabt.example+node+n000-99"
    assert refusal(rspec("a", component_id=urn)) == (1, "Bad resource n000-99")
    assert alice.server.slivers() == []


def test_codes_beyond_the_standard_are_in_am_code_alone(server, alice):
    made, credential = alice.slice()
    request = rspec("a", kind="cray")
    codes = alice.am._proxy.Allocate(made, credential, request, {})["code"]
    assert (codes["geni_code"], codes["am_code"]) == (2, 26)
    assert codes["protogeni_error_url"].startswith("https://")


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (rspec("a", "A"), "Duplicate node A"),
        (rspec("a").replace(' client_id="a"', ""), "Must provide a virtual_id for nodes"),
        (rspec("a").replace("raw-pc", "toaster"), "Unknown virtualization_subtype"),
        (rspec("a", "b").replace('ref client_id="b', 'ref client_id="x'), "No such interface on"),
        (rspec("a").replace("<sliver_type", "<services><execute/></services><sliver_type"), "no"),
        (rspec("a").replace("raw-pc", "raw\u2011pc"), "Bad characters in rspec"),
        ("<rspec/>", "not a request of GENI version 3"),
        (
            rspec("a").replace(
                '"raw-pc"/>', '"raw-pc"><disk_image name="urn:publicid:x"/></sliver_type>'
            ),
            "Malformed image URN",
        ),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(alice, request_, text):
    made, credential = alice.slice()
    answer = alice.am.Allocate(made, credential, request_, {})
    assert answer.code == 1
    assert text in answer.output
    assert alice.server.slivers() == []


@pytest.mark.parametrize("request_", ["<rspec", '<!DOCTYPE r [<!ENTITY e "x">]>' + rspec("a")])
def test_a_request_that_is_no_plain_xml_is_refused(alice, request_):
    made, credential = alice.slice()
    answer = alice.am.Allocate(made, credential, request_, {})
    assert (answer.code, answer.output) == (2, "rspec is not well formed")


def test_nodes_of_other_sites_pass_through(server, alice):
    made, credential = alice.slice()
    other = "urn:publicid:IDN+elsewhere.example+authority+cm"
    request = rspec("here").replace(
        "</rspec>", f'<node client_id="there" component_manager_id="{other}"/></rspec>'
    )
    answer = alice.am.Allocate(made, credential, request, {})
    nodes = etree.fromstring(answer.value["geni_rspec"].encode()).findall(tag("node"))
    assert {n.get("client_id"): n.get("sliver_id") is not None for n in nodes} == {
        "here": True,
        "there": False,
    }
    assert [s.client_id for s in server.slivers()] == ["here"]


def test_a_second_allocation_adds_and_never_overlaps(server, alice):
    made, credential = alice.up("exp1", rspec("w1"))
    alice.ready(made, credential)
    again = alice.am.Allocate(made, credential, rspec("w1"), {})
    assert (again.code, again.output) == (2, "New rspec is not disjoint from sliver")
    more = alice.am.Allocate(made, credential, rspec("w2"), {})
    # What is given and promised again is listed twice.
    assert [s["geni_allocation_status"] for s in more.value["geni_slivers"]] == [
        "geni_provisioned",
        "geni_allocated",
        "geni_allocated",
    ]
    alice.am.Provision([made], credential, RSPEC_VERSION)
    assert alice.states(made, credential) == {"w1": "geni_ready", "w2": "geni_notready"}
    assert alice.start(made, credential).code == 0
    alice.ready(made, credential)
    assert alice.states(made, credential) == {"w1": "geni_ready", "w2": "geni_ready"}


def test_an_update_takes_away_what_the_new_request_lacks(server, alice):
    made, credential = alice.up("exp1", rspec("w1", "w2"))
    alice.ready(made, credential)
    kept = {s.client_id: s.urn for s in server.slivers()}["w2"]
    assert alice.am.Update(made, [made], credential, rspec("w2", "w3"), {}).code == 0
    assert {s.client_id for s in server.slivers()} == {"w1", "w2", "w3"}
    alice.am.Provision([made], credential, RSPEC_VERSION)
    assert {s.client_id: s.urn == kept for s in server.slivers()} == {"w2": True, "w3": False}


def test_only_the_whole_slice_can_be_asked_about(alice):
    made, credential = alice.up("exp1", rspec("w1"))
    sliver = alice.server.slivers()[0].urn
    for answer in (
        alice.am.Status([sliver], credential, {}),
        alice.am.Delete([sliver], credential, {}),
        alice.am.Describe([made, sliver], credential, {}),
    ):
        assert (answer.code, answer.output) == (7, "Must pass only slice URN")


def test_actions_depend_on_what_the_nodes_do(server, alice, gate):
    made, credential = alice.up("exp1", rspec("w1"))

    def act(action):
        answer = alice.am.PerformOperationalAction([made], credential, action, {})
        return answer.code, answer.output

    assert act("geni_start") == (14, "start/restart in progress; try again later")
    assert alice.am.Delete([made], credential, {}).code == 14
    assert alice.am.Allocate(made, credential, rspec("w9"), {}).code == 14
    gate.set()
    alice.ready(made, credential)
    assert act("geni_start") == (7, "Sliver is not stopped (yet)")
    assert act("geni_dance") == (7, "Invalid operational action")
    assert act("geni_stop") == (0, "")
    until(lambda: alice.states(made, credential) == {"w1": "geni_notready"})
    assert server.nodes.running == set()
    assert act("geni_restart") == (7, "Sliver is not started (yet)")
    assert act("geni_start") == (0, "")
    alice.ready(made, credential)


def test_a_node_that_fails_says_why_and_may_be_restarted(server, alice):
    server.faults.node("w2", fails="no boot loader", times=1)
    made, credential = alice.up("exp1", rspec("w1", "w2"))
    alice.ready(made, credential)
    slivers = alice.am.Status([made], credential, {}).value["geni_slivers"][:2]
    assert [(s["geni_operational_status"], s["geni_error"]) for s in slivers] == [
        ("geni_ready", ""),
        ("geni_failed", "no boot loader"),
    ]
    ready_one, failed = ([sliver["geni_sliver_urn"]] for sliver in slivers)
    refused = alice.am.PerformOperationalAction(ready_one, credential, "geni_start", {})
    assert (refused.code, refused.output) == (7, "Sliver is not stopped (yet)")
    alice.am.PerformOperationalAction(failed, credential, "geni_restart", {})
    alice.ready(made, credential)
    assert set(alice.states(made, credential).values()) == {"geni_ready"}
