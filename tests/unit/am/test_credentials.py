"""Who gets in at the GENI site for tests: certificates, and credentials that are verified."""

import socket
import ssl
import xmlrpc.client
from datetime import timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from support.am import AmServer, clock, credential, pki
from support.am.answers import Refusal
from support.am.witness import RSPEC_VERSION, Witness

USER = "urn:publicid:IDN+ilabt.example+user+alice"
SA = "urn:publicid:IDN+ilabt.example+authority+sa"
SLICE = "urn:publicid:IDN+ilabt.example:p+slice+exp1"


@pytest.fixture(scope="module")
def authority():
    """A root, an authority that signs, a user and a slice."""
    root, key = pki.root("ilabt.example"), rsa.generate_private_key(65537, 2048)
    made = {"root": root, "sa": pki.issue(root, "sa", urn=SA, authority=True, key=key)}
    return made | {
        "user": pki.issue(root, "alice", urn=USER, key=key),
        "slice": pki.issue(root, "exp1", urn=SLICE, key=key),
    }


@pytest.fixture
def verifier(authority):
    return credential.Verifier([authority["root"].certificate], clock.Clock())


def issued(authority, hours=1.0, signer="sa", privileges=("*",)):
    expires = clock.Clock().now() + timedelta(hours=hours)
    who = authority[signer]
    return credential.issue(who, authority["user"], authority["slice"], expires, privileges)


def refusal(verifier, text, user=USER, **more):
    with pytest.raises(Refusal) as caught:
        verifier.check([text], user, **more)
    return caught.value.code, caught.value.output


def test_a_credential_says_what_was_signed(authority, verifier):
    found = verifier.check([issued(authority)], USER)
    assert (found.owner, found.target, found.privileges) == (USER, SLICE, {"*"})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("slice+exp1", "slice+exp2"),
        ("<name>*</name>", "<name>x</name>"),
        ("<expires>20", "<expires>21"),
        ("</serial>", "0</serial>"),
        ("\n <uuid", "\n  <uuid"),
    ],
)
def test_whatever_is_changed_is_found(authority, verifier, old, new):
    text = issued(authority)
    assert old in text
    code, output = refusal(verifier, text.replace(old, new))
    assert code == 1
    assert "has been changed" in output


def test_a_digest_that_fits_does_not_replace_the_signature(authority, verifier):
    mine, other = issued(authority), issued(authority, hours=2)
    value = mine.partition("<SignatureValue>")[2].partition("</SignatureValue>")[0]
    his = other.partition("<SignatureValue>")[2].partition("</SignatureValue>")[0]
    assert "signature does not match" in refusal(verifier, mine.replace(value, his))[1]


def test_a_second_credential_beside_the_signed_one_is_refused(authority, verifier):
    text = issued(authority)
    forged = "<signed-credential><credential><owner_urn/></credential>"
    start = text.index("<credential")
    assert refusal(verifier, f"{forged}{text[start:]}")[0] == 1


def test_a_credential_is_for_one_person(authority, verifier):
    answer = refusal(verifier, issued(authority), user=USER.replace("alice", "bob"))
    assert answer == (3, "This is not your credential")


def test_a_credential_ends(authority, verifier):
    code, output = refusal(verifier, issued(authority, hours=-1))
    assert code == 1
    assert output.startswith("Malformed arguments: invalid credential (expired at 20")


def test_a_stranger_s_signature_is_worth_nothing(authority, verifier):
    stranger = pki.issue(pki.root("ilabt.example"), "sa", urn=SA, authority=True)
    text = issued(authority | {"sa": stranger})
    assert refusal(verifier, text) == (3, "Cannot find root certificate for credential signer")


def test_a_privilege_must_be_there(authority, verifier):
    text = issued(authority, privileges=("info",))
    assert refusal(verifier, text, privileges=("embed",)) == (3, "Insufficient privilege")
    assert verifier.check([text], USER, ("info", "embed"))


@pytest.mark.parametrize("text", ["", "<a/>", "no xml", b"<signed-credential/>", None, 7])
def test_what_is_no_credential_is_refused(verifier, text):
    assert refusal(verifier, text)[0] == 1


def test_other_kinds_of_credentials_are_not_seen(verifier):
    structs = [{"geni_type": "geni_abac", "geni_version": "1", "geni_value": "x"}, "<plain/>"]
    assert verifier.structs(structs) == []
    with pytest.raises(Refusal, match="You did not supply any credentials!"):
        verifier.check([], USER)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with AmServer(tmp_path_factory.mktemp("am")) as made:
        yield made


def version(server, login):
    return Witness(server, login).am.GetVersion().value["geni_api"]


def test_an_encrypted_key_lets_its_owner_in(server):
    assert version(server, server.user("alice", passphrase="open sesame")) == 3
    old = server.user("carol", passphrase="old style", traditional=True)
    assert "BEGIN RSA PRIVATE KEY" in old.pem.read_text()
    assert "Proc-Type: 4,ENCRYPTED" in old.pem.read_text()
    assert version(server, old) == 3


def test_without_a_certificate_every_call_is_a_fault(server):
    with pytest.raises(xmlrpc.client.Fault, match="Invalid or missing certificate") as caught:
        version(server, None)
    assert caught.value.faultCode == -32500


@pytest.mark.parametrize("how", [{"days": -1}, {"foreign": True}])
def test_a_certificate_that_is_not_good_ends_the_handshake(server, how):
    login = server.user("eve", passphrase=None, **how)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        version(server, login)


def test_the_server_is_who_its_certificate_says(server, tmp_path):
    trusting = ssl.create_default_context(cafile=str(server.bundle))
    port = int(server.am_url.split(":")[2].split("/")[0])
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"),
    ):
        trusting.wrap_socket(plain, server_hostname="www.wall2.ilabt.example")


def test_the_older_versions_lead_on_to_the_third(server):
    alice = Witness(server, server.user("alice", passphrase=None))
    for url in (server.am_url.removesuffix("/3.0"), server.am_url.replace("3.0", "2.0")):
        proxy = xmlrpc.client.ServerProxy(url, alice.am._proxy("transport"))
        found = proxy.GetVersion()
        assert (found["geni_api"], found["value"]["geni_api"]) == (2, 2)
        assert found["value"]["geni_api_versions"]["3"] == server.am_url
        with pytest.raises(xmlrpc.client.Fault):
            proxy.ListResources([], RSPEC_VERSION)


def test_arguments_that_are_missing_or_odd_are_told_apart(server, capsys):
    alice = Witness(server, server.user("alice", passphrase=None))
    answer = alice.am.Status(["x"])
    assert (answer.code, answer.output) == (1, "Malformed arguments: Missing arguments")
    with pytest.raises(xmlrpc.client.Fault, match="Unknown method"):
        alice.am.Explode()
    with pytest.raises(xmlrpc.client.Fault, match="AttributeError"):
        alice.am.ListResources([], 7)
    assert "AttributeError" in capsys.readouterr().err
