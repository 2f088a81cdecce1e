"""The GENI site for tests: what may follow what, and who may do it."""

import base64
import threading
import time
import zlib
from datetime import timedelta

import pytest
from lxml import etree

from support.am import AmServer, Ghosts, Limits, Site, clock, faults
from support.am.request import tag
from support.am.witness import RSPEC_VERSION, Witness, rspec


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A server, and three users whose keys take a moment to make."""
    nodes = Ghosts("wall2.ilabt.example", boot_seconds=0.05)
    with AmServer(tmp_path_factory.mktemp("am"), nodes=nodes, limits=Limits(delete=0.05)) as made:
        for name in ("alice", "bob"):
            made.user(name, passphrase=None)
        made.user("mallory", passphrase=None, projects=("other",))
        yield made


@pytest.fixture
def server(site):
    """The server with nothing allocated and no faults."""
    site.faults.clear()
    yield site
    site.faults.clear()
    for slice_ in [*site.ledger.slices.values()]:
        slice_.shut_down = False
        until(lambda slice_=slice_: not slice_.busy and not slice_.starting)
        if slice_.urn in site.ledger.slices:
            site.ledger.delete(slice_, blocking=True)
    site.accounts.slices.clear()


@pytest.fixture
def alice(server):
    return Witness(server, server.users["alice"])


@pytest.fixture
def gate(server, monkeypatch):
    """Nodes start and go only while it is open; it opens at the end."""
    opened = threading.Event()
    for name in ("start", "remove"):
        act = getattr(server.nodes, name)
        monkeypatch.setattr(
            server.nodes, name, lambda *things, act=act: opened.wait(30) and act(*things)
        )
    yield opened
    opened.set()


def until(condition, seconds=30):
    """Waits for what happens in the background."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def states(witness, made, credential):
    slivers = witness.am.Status([made], credential, {}).value["geni_slivers"]
    return {sliver.get("geni_client_id"): sliver["geni_operational_status"] for sliver in slivers}


def ready(witness, made, credential):
    final = {"geni_ready", "geni_failed"}
    until(lambda: set(states(witness, made, credential).values()) <= final)


def start(witness, made, credential):
    return witness.am.PerformOperationalAction([made], credential, "geni_start", {})


def in_hours(server, hours):
    return clock.stamp(server.clock.now() + timedelta(hours=hours))


def test_a_slice_goes_all_the_way_and_leaves_nothing(server, alice, gate):
    made, credential = alice.slice()
    allocated = alice.am.Allocate(made, credential, rspec("w1", "w2"), {})
    assert [s["geni_allocation_status"] for s in allocated.value["geni_slivers"]] == [
        "geni_allocated"
    ] * 2
    assert "geni_operational_status" not in allocated.value["geni_slivers"][0]
    users = [{"urn": alice.login.urn, "keys": ["ssh-rsa AAAA a\n"]}]
    given = alice.am.Provision([made], credential, {**RSPEC_VERSION, "geni_users": users})
    assert {s["geni_operational_status"] for s in given.value["geni_slivers"]} == {"geni_notready"}
    assert start(alice, made, credential).value == 0  # Emulab returns nothing of use
    assert set(states(alice, made, credential).values()) == {"geni_configuring"}
    gate.set()
    ready(alice, made, credential)
    assert len(server.slivers()) == 2
    gate.clear()
    deleted = alice.am.Delete([made], credential, {})
    assert [s["geni_allocation_status"] for s in deleted.value] == ["geni_unallocated"] * 2
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
    ready(alice, *alice.up("exp1", rspec("w1")))
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
    ready(alice, made, credential)
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
    assert states(alice, made, credential) == {"w1": "geni_ready", "w2": "geni_notready"}
    assert start(alice, made, credential).code == 0
    ready(alice, made, credential)
    assert states(alice, made, credential) == {"w1": "geni_ready", "w2": "geni_ready"}


def test_an_update_takes_away_what_the_new_request_lacks(server, alice):
    made, credential = alice.up("exp1", rspec("w1", "w2"))
    ready(alice, made, credential)
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
    ready(alice, made, credential)
    assert act("geni_start") == (7, "Sliver is not stopped (yet)")
    assert act("geni_dance") == (7, "Invalid operational action")
    assert act("geni_stop") == (0, "")
    until(lambda: states(alice, made, credential) == {"w1": "geni_notready"})
    assert server.nodes.running == set()
    assert act("geni_restart") == (7, "Sliver is not started (yet)")
    assert act("geni_start") == (0, "")
    ready(alice, made, credential)


def test_a_node_that_fails_says_why_and_may_be_restarted(server, alice):
    server.faults.node("w2", fails="no boot loader", times=1)
    made, credential = alice.up("exp1", rspec("w1", "w2"))
    ready(alice, made, credential)
    slivers = alice.am.Status([made], credential, {}).value["geni_slivers"]
    assert [(s["geni_operational_status"], s["geni_error"]) for s in slivers] == [
        ("geni_ready", ""),
        ("geni_failed", "no boot loader"),
    ]
    ready_one, failed = ([sliver["geni_sliver_urn"]] for sliver in slivers)
    refused = alice.am.PerformOperationalAction(ready_one, credential, "geni_start", {})
    assert (refused.code, refused.output) == (7, "Sliver is not stopped (yet)")
    alice.am.PerformOperationalAction(failed, credential, "geni_restart", {})
    ready(alice, made, credential)
    assert set(states(alice, made, credential).values()) == {"geni_ready"}


def test_a_slice_is_renewed_at_its_authority_first(server, alice):
    made, credential = alice.up("exp1", rspec("w1"))
    later = in_hours(server, 24)
    refused = alice.am.Renew([made], credential, later, {})
    assert (refused.code, refused.output) == (7, "expiration is greater then slice expiration")
    wanted = {"fields": {"SLICE_EXPIRATION": later}}
    assert alice.sa.update("SLICE", made, credential, wanted).code == 0
    # The aggregate believes the credential, and the old one still ends early.
    assert alice.am.Renew([made], credential, later, {}).code == 7
    fresh = alice.sa.get_credentials(made, alice.credential(), {}).value
    granted = alice.am.Renew([made], fresh, later, {}).value
    assert [s["geni_expires"] for s in granted] == [later]


@pytest.mark.parametrize("hours", [-1, 0.05])
def test_a_renewal_that_makes_no_sense_is_refused(server, alice, hours):
    made, credential = alice.up("exp1", rspec("w1"))
    answer = alice.am.Renew([made], credential, in_hours(server, hours), {})
    assert (answer.code, answer.output) == (7, "such a short life for a sliver?")


def test_a_renewal_never_outlives_the_slice_even_as_late_as_possible(server, alice):
    made, credential = alice.up("exp1", rspec("w1"))
    alap = {"geni_extend_alap": True}
    answer = alice.am.Renew([made], credential, in_hours(server, 7), alap)
    assert (answer.code, answer.output) == (7, "expiration is greater then slice expiration")


def test_a_renewal_is_cut_to_the_maximum_on_request(server, alice, monkeypatch):
    made, credential = alice.up("exp1", rspec("w1"))
    monkeypatch.setattr(server.ledger, "_limits", Limits(maximum=3600))
    asked = in_hours(server, 2)
    answer = alice.am.Renew([made], credential, asked, {})
    assert answer.code == 7
    assert answer.output.endswith("the maximum number (60) of minutes")
    answer = alice.am.Renew([made], credential, asked, {"geni_extend_alap": True})
    assert in_hours(server, 0.99) < answer.value[0]["geni_expires"] <= in_hours(server, 1)


def test_a_renewal_may_shorten(server, alice):
    made, credential = alice.up("exp1", rspec("w1"))
    sooner = in_hours(server, 1)
    assert alice.am.Renew([made], credential, sooner, {}).value[0]["geni_expires"] == sooner


def test_a_request_may_say_when_it_ends(server, alice):
    made, credential = alice.slice()
    request = rspec("w1").replace("<rspec", '<rspec expires="{}"', 1)
    later = alice.am.Allocate(made, credential, request.format(in_hours(server, 7)), {})
    assert (later.code, later.output) == (7, "expiration is greater then slice expiration")
    ends = in_hours(server, 2)
    assert alice.am.Allocate(made, credential, request.format(ends), {}).code == 0
    given = alice.am.Provision([made], credential, RSPEC_VERSION).value["geni_slivers"]
    assert [sliver["geni_expires"] for sliver in given] == [ends]


def test_a_slice_that_is_shut_down_is_nobody_s(server, alice):
    made, credential = alice.up("exp1", rspec("w1"))
    ready(alice, made, credential)
    assert alice.am.Shutdown(made, credential, {}).value is True
    assert server.slivers() == []
    answer = alice.am.Allocate(made, credential, rspec("w2"), {})
    assert (answer.code, answer.output) == (3, "Slice has been shutdown")
    # As Emulab's code writes an empty manifest: whoever parses it first will know.
    answer = alice.am.Describe([made], credential, {}).value
    assert answer["geni_slivers"] == []
    with pytest.raises(etree.XMLSyntaxError):
        etree.fromstring(answer["geni_rspec"])


def test_slices_have_names_of_their_own(alice):
    alice.slice("exp1")
    mine = alice.credential()

    def create(name, project="testproj", **fields):
        urn = alice.server.site.project(project)
        fields = {"SLICE_NAME": name, "SLICE_PROJECT_URN": urn, **fields}
        answer = alice.sa.create("SLICE", mine, {"fields": fields})
        return answer.code, answer.output

    assert create("exp1") == (2, "URN already a registered slice")
    assert create("no_underscore") == (1, "no_underscore is not a valid slice name")
    assert create("x" * 20)[0] == 1
    mallory = Witness(alice.server, alice.server.users["mallory"])
    fields = {"SLICE_NAME": "exp1", "SLICE_PROJECT_URN": alice.server.site.project("other")}
    taken = mallory.sa.create("SLICE", mallory.credential(), {"fields": fields})
    assert taken.output == "An existing slice in project testproj already has the same name"
    assert create("exp2", "other") == (3, "No privilege for project other")
    assert create("exp2", SLICE_COLOUR="blue")[0] == 1
    soon = in_hours(alice.server, 0.01)
    assert create("exp2", SLICE_EXPIRATION=soon)[1].startswith("such a short life for a slice?")


def test_a_slice_that_expired_can_be_made_again(server, alice):
    alice.slice("exp1")
    server.clock.advance(6 * 3600 + 1)
    mine = alice.credential()
    assert alice.sa.lookup("SLICE", mine, {"match": {}}).value == {}
    made, _ = alice.slice("exp1")
    assert list(alice.sa.lookup("SLICE", mine, {"match": {}}).value) == [made]


def test_a_member_may_act_and_a_stranger_may_not(server, alice):
    bob = Witness(server, server.users["bob"])
    made, credential = alice.slice("exp1")
    assert bob.sa.get_credentials(made, bob.credential(), {}).code == 3
    members = {"members_to_add": [{"SLICE_MEMBER": bob.login.urn, "SLICE_ROLE": "MEMBER"}]}
    assert alice.sa.modify_membership("SLICE", made, credential, members).code == 0
    his = bob.sa.get_credentials(made, bob.credential(), {}).value
    assert bob.am.Allocate(made, his, rspec("w1"), {}).code == 0
    stolen = bob.am.Status([made], credential, {})
    assert (stolen.code, stolen.output) == (3, "This is not your credential")


def test_the_older_authority_knows_the_same_slices(server, alice):
    mine = alice.old_sa.GetCredential({}).value
    credential = alice.old_sa.Register({"credential": mine, "hrn": "exp9", "type": "Slice"}).value
    made = "urn:publicid:IDN+ilabt.example:testproj+slice+exp9"
    found = alice.old_sa.Resolve({"credential": mine, "urn": made, "type": "Slice"}).value
    assert found["creator_urn"] == alice.login.urn
    assert list(alice.sa.lookup("SLICE", alice.credential(), {}).value) == [made]
    wrapped = [{"geni_type": "geni_sfa", "geni_version": "3", "geni_value": credential}]
    assert alice.am.Allocate(made, wrapped, rspec("w1"), {}).code == 0
    keys = alice.old_sa.GetKeys({"credential": mine, "version": 2}).value
    assert keys == [{"type": "ssh", "key": alice.login.ssh_key}]


def test_members_and_keys_can_be_looked_up(alice):
    mine = alice.credential()
    found = alice.ma.lookup("MEMBER", mine, {"match": {"MEMBER_USERNAME": "alice"}}).value
    assert list(found) == [alice.login.urn]
    keys = alice.ma.lookup("KEY", mine, {"match": {"KEY_MEMBER": alice.login.urn}}).value
    assert [key["KEY_PUBLIC"] for key in keys.values()] == [alice.login.ssh_key]


def test_notes_about_slivers_are_kept(alice):
    mine, name = alice.credential(), "urn:publicid:IDN+wall2.ilabt.example+sliver+1"
    fields = {"SLIVER_INFO_URN": name, "SLIVER_INFO_SLICE_URN": "urn:x"}
    assert alice.sa.create("SLIVER_INFO", mine, {"fields": fields}).value == fields
    change = {"fields": {"SLIVER_INFO_EXPIRATION": "2030-01-01T00:00:00Z"}}
    alice.sa.update("SLIVER_INFO", name, mine, change)
    match = {"match": {"SLIVER_INFO_SLICE_URN": ["urn:x"]}}
    found = alice.sa.lookup("SLIVER_INFO", mine, match).value
    assert found == {name: {**fields, **change["fields"]}}
    alice.sa.delete("SLIVER_INFO", name, mine, {})
    assert alice.sa.lookup("SLIVER_INFO", mine, {"match": {}}).value == {}


def test_answers_may_be_the_standard_s_instead_of_emulab_s(tmp_path):
    site = Site(emulab=False)
    with AmServer(tmp_path, site=site, nodes=Ghosts(site.authority, boot_seconds=0)) as made:
        alice = Witness(made, made.user("alice", passphrase=None))
        assert alice.am.GetVersion().value["geni_single_allocation"] == 1
        urn, credential = alice.slice()
        alice.am.Allocate(urn, credential, rspec("w1"), {})
        alice.am.Provision([urn], credential, RSPEC_VERSION)
        assert [s["geni_client_id"] for s in start(alice, urn, credential).value] == ["w1"]
        wrong = alice.am._proxy.PerformOperationalAction([urn], credential, "dance", {})
        assert wrong["code"] == {"geni_code": 7, "am_type": "gcf"}
        assert wrong["value"] == ""


def test_a_call_is_recorded_with_its_outcome(server, alice):
    before = len(server.calls)
    server.faults.on("get_version", faults.busy(), times=1)
    alice.ma.get_version()
    alice.ma.get_version()
    assert [(c.interface, c.method, c.code) for c in server.calls[before:]] == [
        ("geni-ma", "get_version", 14),
        ("geni-ma", "get_version", 0),
    ]
