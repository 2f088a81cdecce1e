"""Verbs interrupted in each of their phases: over in seconds, and the next one goes on."""

import json
import os
import re
import signal
import subprocess
import time

import pytest

from gpubed.core import runlock
from support.cluster import labelled

pytestmark = [pytest.mark.faults, pytest.mark.e2e, pytest.mark.docker]

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
MAKES_A_NODE = '"op": "create", "status": "started", "urn": ".*::node-1"'
WORKS_ON_NODES = '"what": "host"'
CHECKS = '"what": "check"'


def interrupt(cluster, events, verb, sign, number):
    """Start a verb, wait for the sign that it is in a phase, and interrupt it alone."""
    process = cluster.start(
        *verb, "--engine", "embedded", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    while process.poll() is None and not (events.exists() and re.search(sign, events.read_text())):
        time.sleep(0.1)
    os.kill(process.pid, number)  # alone: its children learn of it from nobody else
    began = time.monotonic()
    _, said = process.communicate(timeout=60)
    assert time.monotonic() - began < 10
    assert process.returncode == 128 + number
    assert "run the same command again" in said
    assert "Traceback" not in said
    assert runlock.workers(cluster.state) == []


@pytest.mark.parametrize("number", SIGNALS)
def test_while_nodes_are_made(bare, tmp_path, number):
    events = tmp_path / "events.jsonl"
    up = ("up", bare.name, "--events", str(events))
    interrupt(bare, events, up, MAKES_A_NODE, number)
    assert bare.json("status", rc=1)["state"] == "allocated"
    assert "only in part made" in bare.call("status", rc=1).stderr
    bare.call("up")
    assert [node["state"] for node in bare.json("status")["nodes"]] == ["ready"] * 2
    found = bare.json("audit")
    assert found["missing"] + found["unrecorded"] + found["interrupted"] == []


@pytest.mark.parametrize("number", SIGNALS)
def test_while_nodes_are_removed(bare, number):
    bare.call("up")
    log = bare.root / ".gpubed/pulumi" / f"down-{bare.name}.jsonl"
    down = ("down", bare.name, "-y")
    interrupt(bare, log, down, '"op": "delete", "status": "started"', number)
    assert bare.json("down", "-y")["survivors"] == []
    assert labelled(bare.name) == []


@pytest.mark.parametrize("number", SIGNALS)
def test_while_roles_are_applied(cluster, tmp_path, number):
    port = 8900 + number
    cluster.edit(lambda spec: spec["services"]["jupyterlab"].update(port=port))
    events = tmp_path / "events.jsonl"
    up = ("up", cluster.name, "--events", str(events))
    interrupt(cluster, events, up, WORKS_ON_NODES, number)


def test_the_next_up_converges(cluster):
    status = cluster.json("up")
    assert f":{8900 + SIGNALS[-1]}/" in status["services"][0]["url"]
    assert status["verification"]["failed"] == 0
    assert cluster.json("plan")["changes"] == []
    assert json.loads(cluster.call("audit", "--json").stdout)["interrupted"] == []


@pytest.mark.parametrize("number", SIGNALS)
def test_while_checks_are_made(cluster, tmp_path, number):
    events = tmp_path / "events.jsonl"
    up = ("up", cluster.name, "--verify", "--events", str(events))
    interrupt(cluster, events, up, CHECKS, number)
    assert cluster.json("verify")["verification"]["failed"] == 0


def test_checks_of_a_change_that_were_cut_off_are_made_by_the_next_up(cluster, tmp_path):
    """The verification that there was is of before the change."""
    cluster.edit(lambda spec: spec["services"]["jupyterlab"].update(port=8950))
    events = tmp_path / "events.jsonl"
    interrupt(cluster, events, ("up", cluster.name, "--events", str(events)), CHECKS, SIGNALS[0])
    left = cluster.json("status")["verification"]
    assert not left["current"]
    assert cluster.json("plan")["changes"], "what is left to do is foreseen"
    now = cluster.json("up")["verification"]
    assert (now["failed"], now["current"]) == (0, True)
    assert now["age_s"] < left["age_s"]
    assert cluster.json("plan")["changes"] == []


def test_a_lost_environment_is_found_and_published_again(cluster):
    cluster.node("head", "sudo rm /shared/env/current && sudo systemctl kill jupyterlab")
    status = cluster.json("status", rc=1)
    assert "/shared/env/current/bin/python" in [one["unit"] for one in status["stopped"]]
    assert cluster.json("up")["state"] == "ready"
    assert cluster.json("run", "digits", "--set", "epochs=2")["status"] == "ok"
