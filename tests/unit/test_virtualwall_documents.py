"""What is asked for, and what is believed of answers: pure functions of the virtualwall backend."""

from __future__ import annotations

import hashlib
import hmac
import xmlrpc.client
from types import SimpleNamespace

import pytest
from lxml import etree

from gpubed.backends.virtualwall import (
    documents,
    faults,
    prepare,
    rspec,
    slice_inputs,
    transport,
)
from gpubed.backends.virtualwall.backend import VirtualWallBackend
from gpubed.backends.virtualwall.faults import Malformed
from gpubed.core.errors import GpubedError, PrerequisiteMissing
from gpubed.spec.clusterspec import model
from gpubed.spec.plan import plan

TESTBEDS = VirtualWallBackend()
IMAGE = "urn:publicid:IDN+wall2.ilabt.example+image+emulab-ops:UBUNTU20-64-STD"
N = {"r": rspec.CORE, "e": rspec.EMULAB, "j": rspec.JFED}
CM = "urn:publicid:IDN+wall2.ilabt.example+authority+cm"
BACKEND = {
    "type": "virtualwall",
    "aggregate": {"url": "https://wall2.ilabt.example/am/3.0", "urn": CM},
    "authority": {
        "slices": "https://sa.example/geni-sa/2",
        "members": "https://ma.example/geni-ma/2",
    },
    "project": "myproj",
    "login": "~/login.pem",
}


def planned(count=3, backend=None, experiment=None, **changes):
    document = {
        "version": 1,
        "name": "vw",
        "backend": BACKEND | (backend or {}),
        "nodes": [{"name": "node", "count": count, **changes.pop("group", {})}],
        "networks": {"experiment": experiment or {"rate": "1 Gbit/s"}},
        **changes,
    }
    return plan(model().model_validate(document))


def root_of(wanted):
    return etree.fromstring(rspec.request(wanted).encode())


def test_on_a_lan_each_end_gets_half_so_that_a_way_across_is_as_declared():
    shape = {"rate": "100 Mbit/s", "latency": "10 ms", "loss": 0.02}
    found = root_of(planned(3, experiment=shape)).xpath("r:link/r:property", namespaces=N)
    assert {p.get("dest_id") for p in found} == {"experiment"}
    assert {p.get("latency") for p in found} == {"5"}
    loss = float(found[0].get("packet_loss"))
    assert 1 - (1 - loss) ** 2 == pytest.approx(0.02, abs=1e-5)


def test_public_addresses_are_a_pool_for_machines_and_an_option_of_virtual_ones():
    whole = root_of(planned(backend={"public_address": "all"}))
    assert whole.xpath("e:routable_pool/@count", namespaces=N) == ["3"]
    virtual = {"hardware": {"node": {"sliver": "emulab-xen"}}, "public_address": "head"}
    root = root_of(planned(backend=virtual, group={"machine": {"cpus": 1.5, "memory": "2 GiB"}}))
    assert root.xpath("e:routable_pool", namespaces=N) == []
    assert root.xpath("r:node[e:routable_control_ip]/@client_id", namespaces=N) == ["node-0"]
    assert root.xpath("//e:xen/@cores", namespaces=N)[0] == "2"
    assert root.xpath("//e:xen/@ram", namespaces=N)[0] == "2048"


def test_only_spare_nodes_may_fail_without_failing_the_slice():
    root = root_of(planned(group={"min": 2}))
    spare = root.xpath("r:node[e:failure_action]/@client_id", namespaces=N)
    assert spare == ["node-1", "node-2"]


def test_a_node_that_is_alone_asks_for_no_interface():
    """Emulab gives hardware to interfaces in links only."""
    assert "<interface" not in rspec.without(rspec.request(planned(1)), ())
    assert "<interface" not in rspec.without(rspec.request(planned(2)), ["node-1"])
    assert "<interface" not in TESTBEDS.export(planned(1), "rspec")
    assert TESTBEDS.foretold(planned(1), planned(1).nodes[0]) == {"experiment_address": None}


def test_what_a_running_slice_was_asked_for_with_is_still_the_same():
    """Another text would have it replaced."""
    alone, pair = (slice_inputs.digest(rspec.request(planned(count))) for count in (1, 2))
    assert (alone, pair) == ("67f50a54ae06ab03", "08aa3c94b2710449")


def test_a_lan_of_which_two_are_left_is_shaped_as_a_link_of_two():
    shape = {"rate": "1 Gbit/s", "latency": "10 ms", "loss": 0.01}
    left = rspec.without(rspec.request(planned(3, experiment=shape)), ["node-2"])
    wanted = root_of(planned(2, experiment=shape))
    found = etree.fromstring(left.encode()).findall("r:link/r:property", N)
    for one, other in zip(found, wanted.findall("r:link/r:property", N), strict=True):
        left, right = dict(one.attrib), dict(other.attrib)
        lost = float(left.pop("packet_loss")), float(right.pop("packet_loss"))
        assert left == right
        assert lost[0] == pytest.approx(lost[1], abs=1e-5)


def test_nothing_that_is_kept_in_the_state_is_secret():
    for word in ("PRIVATE KEY", "openssl", "-hmac"):
        assert word not in str(slice_inputs.planned(planned()))


def _manifest(node="", attributes="", extra=""):
    return (
        f'<rspec xmlns="{rspec.CORE}" type="manifest">'
        f'<node client_id="node-0" sliver_id="urn:publicid:IDN+w+sliver+1" {attributes}>{node}'
        f"</node>{extra}</rspec>"
    )


LOGIN = (
    '<services><login authentication="ssh-keys" hostname="n1.example" port="22" username="bob"/>'
    '<login authentication="ssh-keys" hostname="n1.example" port="2201" username="alice"/>'
    "</services>"
)
LINK = '<link><interface_ref client_id="node-0:experiment"/></link>'
END = '<interface client_id="node-0:experiment" '
ADDRESS = '<host name="x" ipv4="10.2.33.12"/>'


def test_a_manifest_tells_login_addresses_and_mac():
    text = _manifest(
        LOGIN.replace("2201", "22") + ADDRESS + '<interface client_id="node-0:experiment" '
        'mac_address="0030487D1A2B"><ip address="10.0.0.10" netmask="255.255.240.0" type="ipv4"/>'
        "</interface>",
        extra=LINK,
    )
    granted, reasons = documents.manifest(text, ["node-0", "node-1"], "alice")
    assert list(reasons) == ["node-1"]
    node = granted["node-0"]
    found = (node.host, node.port, node.user, node.ipv4)
    assert found == ("n1.example", 22, "alice", "10.2.33.12")
    assert node.interfaces == (documents.Interface("00:30:48:7d:1a:2b", "10.0.0.10", 20),)
    assert documents.manifest(text, ["node-0"], "carol")[0]["node-0"].user == "bob"


def test_a_virtual_machine_behind_a_port_of_its_host_is_reached_through_that_host():
    """Its own address, where the manifest has one, is of no use with that port."""
    node = documents.manifest(_manifest(LOGIN + ADDRESS), ["node-0"], "alice")[0]["node-0"]
    assert (node.host, node.port, node.ipv4) == ("n1.example", 2201, "")


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ("", "no login"),
        (LOGIN.replace("n1.example", "-oProxyCommand=reboot"), "host name"),
        (LOGIN.replace("n1.example", "a b"), "host name"),
        (LOGIN.replace("bob", "a b").replace("alice", "root; reboot"), "user name"),
        (LOGIN.replace("2201", "99999"), "port"),
        (LOGIN.replace("2201", "٢٢"), "port"),
        (LOGIN + '<host ipv4="$(reboot)"/>', "address"),
        (LOGIN + END + 'mac_address="z"><ip netmask="255.0.0.0"/></interface>', "MAC"),
        (LOGIN + END + '><ip netmask="x"/></interface>', "without a netmask"),
        (LOGIN + END + '><ip address="300.0.0.1" netmask="255.0.0.0"/></interface>', "address"),
    ],
)
def test_a_hostile_manifest_makes_a_node_unusable(node, said):
    granted, reasons = documents.manifest(_manifest(node, extra=LINK), ["node-0"], "alice")
    assert granted == {}
    assert said in reasons["node-0"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not XML"),
        ("<rspec", "not XML"),
        ("<html/>", "something else"),
        ('<!DOCTYPE a [<!ENTITY x "y">]><rspec/>', "entities"),
        (_manifest(extra='<node client_id="node-0"/>'), "twice"),
        ("<rspec>" + "<a>" * 500 + "</rspec>", "not XML"),
    ],
)
def test_what_is_no_manifest_is_one_clear_error(text, said):
    with pytest.raises(Malformed, match=said):
        documents.manifest(text, ["node-0"], "alice")


def test_a_testbeds_words_are_fit_for_a_terminal():
    assert faults.clean("a\x1b[31mb\n\n  c\x07 ") == "a[31mb\nc"
    assert len(faults.clean("x" * 9999)) < 2000
    assert isinstance(faults.answered("x", 26, ""), faults.NoResources)
    assert "https://log" in str(faults.answered("x", 2, "bad", "https://log").hint)


@pytest.mark.parametrize(
    ("said", "kind", "hint"),
    [
        ("Invalid or missing certificate", PrerequisiteMissing, None),
        ("Your account is no longer active", PrerequisiteMissing, None),
        ("Invalid module specification", faults.Answered, "correct the URLs in backend"),
        ("No such requested authority", faults.Answered, "correct the URLs in backend"),
        ("Internal error", faults.Unanswered, faults.Unanswered("").hint),
        ("Out of coffee", faults.Answered, None),
    ],
)
def test_a_fault_of_emulabs_wrapper_is_told_by_its_words(said, kind, hint):
    fault = xmlrpc.client.dumps(xmlrpc.client.Fault(-32500, said)).encode()
    with pytest.raises(kind, match=said) as refused:
        transport._decode("the aggregate", fault)
    assert refused.value.hint == hint


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-20T22:20:58Z",
        "2026-11-20T22:20:58.852384+00:00",
        "2026-11-20 22:20:58",
        "2026-11-20T23:20:58+01:00",
    ],
)
def test_every_dialect_of_time_is_read(text):
    assert documents.timestamp(documents.time(text)) == "2026-11-20T22:20:58Z"


def test_what_is_no_time_or_urn_is_refused():
    for wrong in (None, "", "tomorrow", 7):
        with pytest.raises(Malformed):
            documents.time(wrong)
    with pytest.raises(GpubedError):
        documents.urn("urn:publicid:IDN+a+user+b c", "user")
    with pytest.raises(GpubedError):
        documents.urn("urn:publicid:IDN+a+slice+b", "user")


def test_a_slice_name_is_one_that_every_authority_takes():
    for cluster in ("a", "a-very-long-cluster-name-indeed", "abcdefghi-jk"):
        name = documents.slice_name(cluster, "6f0c0000-0000-4000-8000-000000000000")
        assert len(name) <= 19
        assert "--" not in name


def _shown(keys, token):
    mac = hmac.new(token.encode(), keys.encode(), hashlib.sha256).hexdigest()
    return f"{keys}--\n{mac} */var/tmp/gpubed-host-keys\n"


def test_host_keys_are_believed_under_the_token_only():
    keys = "ssh-ed25519 AAAA root@n1\nssh-rsa BBBB root@n1\n"
    assert prepare.proved(_shown(keys, "t"), "t") == ("ssh-ed25519 AAAA", "ssh-rsa BBBB")
    assert prepare.proved(_shown(keys, "other"), "t") is None
    assert prepare.proved(_shown(keys, "t").replace("AAAA", "EVIL"), "t") is None
    for cut in ("", keys, f"{keys}--\n", "--\n"):
        assert prepare.proved(cut, "t") is None


def test_the_boot_command_is_one_that_emulab_runs(tmp_path):
    cluster = SimpleNamespace(secrets=tmp_path / "secrets")
    command = prepare.command(cluster)
    rspec.with_command(rspec.request(planned()), command)
    assert len(command) <= 240
    assert prepare.token(cluster) in command


def test_an_experiment_specification_needs_nothing_of_ours():
    import yaml

    document = yaml.safe_load(rspec.specification(planned()))
    assert document["version"] == "1.0-basic"
    assert document["rspec"] == "cluster.rspec"
    [step] = document["execute"]
    assert step["direct"].startswith("#!/bin/sh\n")
    assert "NAT='yes'" in step["direct"]


@pytest.mark.parametrize(
    ("backend", "where", "said"),
    [
        ({"hardware": {"ghost": {}}}, ("backend", "hardware", "ghost"), "no node group"),
        (
            {"hardware": {"node": {"machines": ["urn:publicid:IDN+w+node+n1"]}}},
            ("backend", "hardware", "node", "machines"),
            "1 machines for 3",
        ),
    ],
)
def test_check_refuses_what_the_testbed_would(backend, where, said):
    [problem] = TESTBEDS.check(planned(backend=backend).spec)
    assert problem.path == where
    assert said in problem.message


def test_an_image_that_the_testbeds_default_stands_for_is_named():
    [said] = TESTBEDS.warnings(planned().spec)
    assert "'debian-12'" in said
    assert TESTBEDS.warnings(planned(backend={"images": {"debian-12": IMAGE}}).spec) == []


@pytest.mark.parametrize(
    ("count", "networks"), [(1, {"experiment": {"rate": "1 Gbit/s"}}), (2, {})]
)
def test_traffic_without_links_needs_the_bastion_for_ipv4(count, networks):
    mapped = {"images": {"debian-12": IMAGE}}
    behind = mapped | {"bastion": {}}
    [said] = TESTBEDS.warnings(planned(count, mapped, networks=networks).spec)
    assert "backend.bastion" in said
    assert TESTBEDS.warnings(planned(count, behind, networks=networks).spec) == []
    assert TESTBEDS.warnings(planned(count, mapped, networks=networks, configure=False).spec) == []


def test_a_volume_needs_a_folder_that_the_testbed_mounts():
    wanted = planned(storage={"shared": {"provider": "volume"}}).spec
    assert TESTBEDS.check(wanted)[0].path == ("storage", "shared", "provider")
