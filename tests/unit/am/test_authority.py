"""The GENI site for tests: how long things last, and who may do what."""

from datetime import timedelta

import pytest
from lxml import etree

from support.am import AmServer, Ghosts, Limits, Site, clock, faults
from support.am.witness import RSPEC_VERSION, Witness, rspec


def in_hours(server, hours):
    return clock.stamp(server.clock.now() + timedelta(hours=hours))


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
    alice.ready(made, credential)
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


def test_of_a_slice_of_others_no_more_than_its_name_is_told(server, alice):
    """As Emulab lists a project: a client that expects an end of each finds out."""
    bob, (made, _) = Witness(server, server.users["bob"]), alice.slice("exp1")
    match = {"match": {"SLICE_PROJECT_URN": server.site.project("testproj")}}
    found = bob.sa.lookup("SLICE", bob.credential(), match).value
    assert found.keys() == {made}
    assert found[made].keys() == {
        "SLICE_URN",
        "SLICE_NAME",
        "SLICE_PROJECT_URN",
        "_EMULAB_SLICE_HRN",
    }


def test_projects_are_listed_for_their_members_alone(server, alice):
    """Emulab does not look projects up; that is not implemented."""
    mine, project = alice.credential(), server.site.project("testproj")
    match = {"match": {"PROJECT_URN": project}}
    assert alice.sa.lookup("PROJECT", mine, match).code == 100
    found = alice.sa.lookup_for_member("PROJECT", alice.login.urn, mine, {}).value
    assert [entry["PROJECT_URN"] for entry in found] == [project]
    others = alice.sa.lookup_for_member("PROJECT", server.users["bob"].urn, mine, {})
    assert others.code == 3


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
    site = Site(face="standard")
    with AmServer(tmp_path, site=site, nodes=Ghosts(site.authority, boot_seconds=0)) as made:
        alice = Witness(made, made.user("alice", passphrase=None))
        assert alice.am.GetVersion().value["geni_single_allocation"] == 1
        urn, credential = alice.slice()
        alice.am.Allocate(urn, credential, rspec("w1"), {})
        alice.am.Provision([urn], credential, RSPEC_VERSION)
        assert [s["geni_client_id"] for s in alice.start(urn, credential).value] == ["w1"]
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
