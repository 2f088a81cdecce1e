"""A cluster on a real OpenStack, with the real Pulumi CLI and plugin.

The tests use one cluster, in this order.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from live.conftest import ACCESS_FROM, NEEDED, Live, everything
from support import howto
from support.cluster import Cluster

pytestmark = NEEDED


def test_1_doctor_finds_everything_in_place(live: Live) -> None:
    found = live.cluster.json("doctor")["findings"]
    about = {finding["id"] for finding in found if finding["id"].startswith("openstack.")}
    assert {"openstack.credentials", "openstack.flavor", "openstack.image"} <= about
    assert {"openstack.quota", "openstack.plugin", "openstack.clock"} <= about


@pytest.mark.parametrize(
    ("backend", "count", "words"),
    [
        ({"flavor": "no-such-flavor"}, 3, "there is no flavor 'no-such-flavor'"),
        ({"external_network": "nowhere"}, 3, "there is no external network 'nowhere'"),
        ({"images": {"debian-12": "no-such"}}, 3, "there is no image 'no-such'"),
        ({}, 400, "quota: 400 more server(s) are wanted"),
    ],
)
def test_1_a_refusal_names_the_reason_and_leaves_nothing(
    live: Live, backend: dict[str, Any], count: int, words: str
) -> None:
    right = live.cluster.spec
    live.cluster.write(
        {**right, "backend": {**right["backend"], **backend}, "nodes": [{"count": count}]}
    )
    try:
        assert words in live.cluster.call("up", "--engine", "cli", rc=3).stderr
        # Plain Pulumi looks too, before it makes anything.
        with pytest.raises(AssertionError) as refused:
            live.pulumi(f"up --yes --skip-preview -s {live.cluster.name}")
        assert words in str(refused.value)
        assert not any(live.there().values())
    finally:
        live.cluster.write(right)
        live.cluster.call("down", "-y", "--engine", "cli")


def test_1_the_embedded_engine_is_refused(live: Live) -> None:
    refused = live.cluster.call("up", "--engine", "embedded", rc=3)
    assert "needs Pulumi's CLI" in refused.stderr


def test_2_up_makes_what_the_specification_says(live: Live) -> None:
    assert {change.split()[0] for change in live.plan()} == {"create"}
    assert not any(live.there().values())
    assert set(live.up()) == {"node-0", "node-1", "node-2"}
    there = live.there()
    assert {kind: len(names) for kind, names in there.items()} == {
        "server": 3,
        "key pair": 1,
        "server group": 1,
        "network": 2,
        "subnet": 2,
        "port": 3 * 2 + 1,  # and the router's
        "router": 1,
        "floating address": 1,
        "security group": 2,
        "volume": 0,
    }


def test_2_the_door_is_the_heads(live: Live) -> None:
    allocation = json.loads((live.cluster.state / "allocation.json").read_text())
    (address,) = {node["via"][0]["address"] for node in allocation["nodes"]}
    floating = live.connection.network.find_ip(address)
    assert floating.fixed_ip_address == allocation["nodes"][0]["control_address"]
    config = (live.cluster.state / "ssh_config").read_text()
    assert "ProxyJump" in config
    assert address in config


def test_2_neutron_lets_in_only_what_was_asked_for(live: Live) -> None:
    rules = [
        rule
        for group in live.connection.network.security_groups(
            tags=f"gpubed.name={live.cluster.name}"
        )
        for rule in group.security_group_rules
        if rule["direction"] == "ingress"
    ]
    sources = {
        (r["remote_ip_prefix"], r["port_range_min"], bool(r["remote_group_id"])) for r in rules
    }
    assert sources == {(ACCESS_FROM, 22, False), (None, None, True)}


def test_2_no_credential_or_private_key_is_in_the_state(live: Live) -> None:
    secrets = live.login.secrets[:]
    keys = [path.read_text() for path in (live.cluster.state / "secrets").glob("host_*")]
    assert len(keys) == 3
    secrets += [key.splitlines()[2] for key in keys]
    # Pulumi's plugin writes the user data as numbers when it debugs.
    secrets += ["UserData", "0x23, 0x63, 0x6c"]
    for path in (live.cluster.root / ".gpubed").rglob("*"):
        if path.is_file() and path.parent.name != "secrets":
            text = path.read_text(errors="replace")
            assert not [secret for secret in secrets if secret in text], path


def test_2_nodes_are_what_their_user_data_says(live: Live) -> None:
    assert live.cluster.node("node-1", "hostname; sudo -n id -u").split() == ["node-1", "0"]
    ways = live.cluster.node("node-1", "sudo ip route show type prohibit")
    assert "169.254.169.254" in ways, "the metadata service is out of reach"


def test_3_an_unchanged_up_plans_nothing(live: Live) -> None:
    assert live.plan() == set()
    assert live.up() == live.nodes
    live.pulumi(f"preview --expect-no-changes -s {live.cluster.name}")
    live.pulumi(f"preview --refresh --expect-no-changes -s {live.cluster.name}")
    assert live.cluster.json("audit")["missing"] == []


def test_3_every_command_of_the_how_to_page_does_what_it_says(live: Live) -> None:
    said = howto.follow(live.cluster, "openstack.md", "cloudy", live.cluster.root)
    assert live.flavor in said


def test_4_growing_touches_only_the_new_node(live: Live) -> None:
    before = dict(live.nodes)
    live.scale(4)
    changes = live.plan()
    # The look at the cloud, and what follows from the new allocation.
    assert changes - {
        f"create {name}" for name in ("node-3", "node-3-control", "node-3-experiment")
    } == {"update capacity", "update configuration"}
    live.pulumi(f"up --yes -s {live.cluster.name}")
    assert live.plan() == set(), "plain Pulumi has done what gpubed would"
    assert {name: id_ for name, id_ in live.up().items() if name in before} == before
    assert set(live.nodes) - set(before) == {"node-3"}


def test_4_shrinking_removes_only_what_goes(live: Live) -> None:
    before = dict(live.nodes)
    live.scale(2)
    doomed = {
        f"delete {name}{part}"
        for name in ("node-2", "node-3")
        for part in ("", "-control", "-experiment")
    }
    assert live.plan() == doomed | {"update capacity", "update configuration"}
    assert live.up("-y") == {name: before[name] for name in ("node-0", "node-1")}
    assert len(live.there()["server"]) == 2
    assert live.plan() == set()


def test_5_a_server_that_was_deleted_behind_our_back_is_replaced(live: Live) -> None:
    before, ports = dict(live.nodes), live.there()["port"]
    lost = live.connection.compute.get_server(before["node-1"])
    live.connection.compute.delete_server(lost)
    live.connection.compute.wait_for_delete(lost)
    assert "node-1 is missing" in live.cluster.call("plan", "--engine", "cli").stderr
    audit = live.cluster.json("audit", rc=1)
    assert [found["name"] for found in audit["missing"]] == ["node-1"]
    after = live.up()
    assert after["node-0"] == before["node-0"]
    assert after["node-1"] != before["node-1"]
    assert live.there()["port"] == ports
    assert live.plan() == set()


def test_5_a_server_that_was_stopped_is_started(live: Live) -> None:
    stopped = live.connection.compute.get_server(live.nodes["node-1"])
    live.connection.compute.stop_server(stopped)
    live.connection.compute.wait_for_server(stopped, status="SHUTOFF")
    assert "node-1 is stopped" in live.cluster.call("plan", "--engine", "cli").stderr
    before = dict(live.nodes)
    assert live.up() == before


def test_6_what_is_left_by_somebody_else_is_found_and_removed(live: Live) -> None:
    uuid_ = json.loads((live.cluster.state / "allocation.json").read_text())["uuid"]
    orphan = live.connection.network.create_network(name="orphan")
    tags = [f"gpubed.cluster={uuid_}", f"gpubed.name={live.cluster.name}"]
    live.connection.network.set_tags(orphan, tags)
    audit = live.cluster.json("audit", rc=1)
    assert [found["name"] for found in audit["unrecorded"]] == ["orphan"]
    live.cluster.call("audit", "--remove", "-y")
    assert live.connection.network.find_network(orphan.id) is None
    assert live.cluster.json("audit")["unrecorded"] == []


def test_6_resources_are_offered(live: Live) -> None:
    offers = {offer["name"]: offer for offer in live.cluster.json("resources")["offers"]}
    assert offers[live.flavor]["free"] != 0


def test_7_what_a_killed_run_left_does_not_stop_the_next(live: Live) -> None:
    """Killed while a server is made: the plugin knows nothing of it, its ports are taken."""
    before = dict(live.nodes)
    live.scale(3)
    events = live.cluster.root / "kill.jsonl"
    words = ("up", live.cluster.name, "--engine", "cli", "--events", str(events))
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = live.cluster.start(*words, **quiet, start_new_session=True)
    while len(live.there()["server"]) < 3:
        assert process.poll() is None, "it ended before it could be killed"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    # The server that it was making goes, and that is asked.
    after = live.up("-y")
    assert {name: after[name] for name in before} == before
    assert len(live.there()["server"]) == 3
    assert live.plan() == set()


def test_8_the_rest_go_on_without_servers_that_nova_cannot_place(live: Live) -> None:
    """Servers that may not share a host, more than there are hosts for."""
    right = live.cluster.spec
    name, backend = f"{live.cluster.name}-spread", {**right["backend"], "anti_affinity": "hard"}
    made = Cluster(live.cluster.root, name, backend=backend, nodes=[{"count": 1}], configure=False)
    spread = replace(live, cluster=made, before=everything(live.connection))
    try:
        head = spread.up()
        spread.cluster.edit(
            lambda spec: spec["nodes"][0].update(count=3, min=1, on_failure="replace")
        )
        with pytest.raises(AssertionError, match="ERROR"):
            spread.pulumi(f"up --yes --skip-preview -s {name}")
        document = made.json("up", "--engine", "cli")
        if len(document["nodes"]) > 1:
            pytest.skip("this cloud has a host for each server")
        assert {node["name"]: node["id"] for node in document["nodes"]} == head
        assert [failure["node"] for failure in document["failed"]] == ["node-1", "node-2"]
        reasons = {failure["reason"] for failure in document["failed"]}
        assert all("No valid host was found" in reason for reason in reasons), reasons
        assert len(spread.there()["server"]) == 1
        assert {"create node-1", "create node-2"} <= spread.plan(), "the next up asks again"
        spread.cluster.edit(lambda spec: spec["nodes"][0].update(on_failure="leave_out"))
        assert spread.up() == head
        assert spread.plan() == set(), "they are left out for good"
        spread.cluster.edit(lambda spec: spec["nodes"][0].update(min=2))
        refused = made.call("up", "--engine", "cli", rc=4).stderr
        assert "1 of 3 nodes of group 'node' are there, at least 2 are needed" in refused
        assert any(reason in refused for reason in reasons)
        assert len(spread.there()["server"]) == 1
    finally:
        made.call("down", "-y", "--engine", "cli")
    assert not any(spread.there().values())


def test_9_down_leaves_nothing(live: Live) -> None:
    removal = live.cluster.json("down", "-y", "--engine", "cli")
    assert removal["survivors"] == []
    assert not any(live.there().values())


def test_9_a_lost_state_leaves_nothing_either(live: Live, tmp_path: Path) -> None:
    live.scale(1)
    live.up()
    shutil.move(live.cluster.root / ".gpubed", tmp_path / "lost")
    uuid_ = json.loads((tmp_path / "lost" / live.cluster.name / "allocation.json").read_text())[
        "uuid"
    ]
    live.cluster.call("audit", "--remove", "--uuid", uuid_, "--data", "-y")
    assert not any(live.there().values())
