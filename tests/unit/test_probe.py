"""How a cluster is; sessions and the testbed are STAND-INs."""

import json
import os
import shlex
import subprocess
from functools import partial
from types import SimpleNamespace

import pytest

from gpubed.cluster import probe
from gpubed.configuration import roles
from gpubed.core.errors import GpubedError
from gpubed.core.paths import Project
from gpubed.nodes.allocation import Cluster, Hop
from gpubed.nodes.ssh import HostKeyMismatch, LoginRefused, Unreachable
from support.samples import sample_allocation, sample_plan

LOCAL = SimpleNamespace(shapes_on_nodes=True, nodes_are_here=True, when_silent="mended")
RUNS = "LoadState=loaded\nActiveState=active\nUnitFileState=enabled\nConditionResult=yes"
DEAD = RUNS.replace("=active", "=inactive")
ABSENT = "LoadState=not-found\nActiveState=inactive\nUnitFileState=\nConditionResult=no"


@pytest.fixture
def found(monkeypatch, tmp_path):
    """A function that looks at a cluster: what the testbed says, then what nodes answer."""
    plan = sample_plan(nodes=[{"name": "node", "count": 3}])
    granted = sample_allocation(plan)

    def look(testbed=None, answers=None, services=None, disks=None, units=None, **options):
        wanted, health = options.get("plan", plan), options.get("health")
        verb = options.get("verb", probe.look)

        class Session:
            def __init__(self, node, _):
                self.name, self.said = node.name, (answers or {}).get(node.name, "")

            def __enter__(self):
                return self

            def __exit__(self, *_):
                pass

            def run(self, command, *_words, **_options):
                if isinstance(self.said, Exception):
                    raise self.said
                if " systemctl " in command:
                    asked.append(self.name)
                    said = [
                        (units or {}).get((self.name, unit), RUNS)
                        for unit in shlex.split(command.partition(" -- ")[2])
                    ]
                    return SimpleNamespace(stdout="\n\n".join(said) + "\n")
                if "gpubed-health" in command:
                    told = (health or {}).get(self.name, {})
                    return SimpleNamespace(stdout=json.dumps(told), stderr="")
                plain = {" df ": (disks or {}).get(self.name, "")}
                plain["for file in "] = (units or {}).get((self.name, "files"), "")
                said = next((text for of, text in plain.items() if of in command), self.said)
                return SimpleNamespace(stdout=said)

        given = options.get("granted", granted)
        states = {node.name: "ready" for node in given.nodes} | (testbed or {})
        monkeypatch.setattr(probe, "SSH", Session)
        monkeypatch.setattr(probe.services, "answers", lambda *_: services or {})
        asked_of = SimpleNamespace(
            backend=options.get("backend", LOCAL),
            paths=Project(tmp_path).cluster("lab"),
            describe=lambda _: states,
        )
        return verb(asked_of, Cluster(asked_of.paths, wanted, given))

    look.granted, look.asked = granted, (asked := [])
    return look


def test_what_nodes_say_against_themselves_is_heard_and_no_damage(found):
    held = {"reason": "its fan is loud", "since": "2030-01-01T00:00:00+00:00"}
    now = found({"node-2": "stopped"}, health={"node-1": {"quarantine": held}})
    assert [(one.node, one.reason) for one in now.unwell] == [("node-1", "its fan is loud")]
    assert now.damaged == {"node-2": "stopped"}


def test_each_damage_is_named_with_what_becomes_of_it(found):
    stranger = HostKeyMismatch("node-2", ["ssh-ed25519 AAAA"], "ssh-ed25519 BBBB")
    now = found({"node-0": "missing"}, {"node-1": "cut\n", "node-2": stranger})
    assert now.nodes == {"node-0": "missing", "node-1": "cut", "node-2": "unrecognized"}
    assert now.state == "degraded"
    assert now.words[:2] == [
        "node-0 is missing: it is made again",
        "node-1 is cut: it is connected again",
    ]


WALL = SimpleNamespace(shapes_on_nodes=False, nodes_are_here=False, when_silent="restarted")
GATE = Hop(address="192.0.2.1", user="me", host_keys=("ssh-ed25519 GATE",))


def on_the_way(error):
    error.on_the_way = True
    return error


def all_say(make, *names):
    return {name: make() for name in names or ("node-0", "node-1", "node-2")}


def test_what_becomes_of_a_silent_node_is_its_testbeds_own(found):
    now = found(answers={"node-1": Unreachable("no")}, backend=WALL)
    assert now.words == ["node-1 is unreachable: restarted"]
    assert (now.all_silent, now.unknown) == (False, {})


def test_a_node_behind_a_host_that_fails_is_hidden_and_not_silent(found, monkeypatch):
    now = found(answers={"node-1": on_the_way(Unreachable("gate says no"))}, backend=WALL)
    assert now.nodes["node-1"] == "hidden"
    assert list(now.unknown) == ["node-1"]
    assert now.state == "degraded"

    def greet(node, _):
        raise Unreachable(f"gate does not lead to {node.name}")

    monkeypatch.setattr(probe, "greet", greet)
    behind = {"node-1": on_the_way(Unreachable("gate says no"))}
    with pytest.raises(Unreachable, match="gate does not lead to node-1"):
        found(answers=behind, backend=WALL, verb=probe.require)


def test_where_no_node_answers_it_may_be_the_way(found):
    for make in (lambda: Unreachable("no"), lambda: on_the_way(Unreachable("gate says no"))):
        now = found(answers=all_say(make), backend=WALL)
        assert now.all_silent
        assert len(now.unknown) == 3
        assert "check your network" in now.words[0]
        assert not found(answers=all_say(make)).all_silent, "to this machine's own, no way fails"


@pytest.mark.parametrize(
    ("testbed", "says"),
    [
        ({}, all_say(lambda: Unreachable("no"), "node-0", "node-2")),
        ({"node-1": "missing"}, all_say(lambda: Unreachable("no"))),
        ({}, all_say(lambda: LoginRefused("no such key"))),
        ({}, all_say(lambda: GpubedError("its answer is none"))),
    ],
    ids=["one-answers", "one-is-known-of", "all-refuse", "all-are-slow"],
)
def test_where_anything_is_known_it_is_not_the_way(found, testbed, says):
    assert not found(testbed, says, backend=WALL).all_silent


def alone(**changes):
    """Return the plan of a single node, and what was granted of it."""
    plan = sample_plan(nodes=[{"name": "node", "count": 1}])
    granted = sample_allocation(plan)
    node = granted.nodes[0].model_copy(update=changes)
    return {"plan": plan, "granted": granted.model_copy(update={"nodes": (node,)})}


@pytest.mark.parametrize(
    ("via", "error", "all_silent"),
    [
        ((), lambda: Unreachable("no"), True),
        ((GATE,), lambda: Unreachable("no"), False),
        ((GATE,), lambda: on_the_way(Unreachable("no gate")), True),
    ],
    ids=["direct", "gate-vouches", "gate-fails"],
)
def test_of_a_single_node_a_host_on_the_way_vouches_for_that(found, via, error, all_silent):
    assert (
        found(answers={"node-0": error()}, backend=WALL, **alone(via=via)).all_silent is all_silent
    )


def test_a_node_that_is_its_own_door_is_silent_and_not_hidden(found):
    """As a cloud's head, reached through its other address; what answers there is alive."""
    own = GATE.model_copy(update={"host_keys": ("ssh-ed25519 KEY0",)})
    for error, all_silent in ((Unreachable("no"), True), (LoginRefused("no such key"), False)):
        says = {"node-0": on_the_way(error)}
        now = found(answers=says, backend=WALL, **alone(via=(own,)))
        assert (now.nodes, now.all_silent) == ({"node-0": "unreachable"}, all_silent)


@pytest.mark.parametrize(
    ("due", "state"), [({"jupyterlab": ["node-0"]}, "ready"), ({"base": ["node-0"]}, "degraded")]
)
def test_up_asks_no_service_that_it_sets_up_anyway(found, monkeypatch, due, state):
    """With another port in the specification, who asked there waited in vain."""
    monkeypatch.setattr(probe.due, "now", lambda *_: due)
    before = partial(probe.look, before_roles=True)
    assert found(services={"jupyterlab": "it does not answer"}, verb=before).state == state


FULL = "Mounted on Use% Avail IUse% IFree\n/var 100% 0 4% 9000\n"


def test_a_full_disk_is_named_and_no_reason_to_make_the_node_again(found):
    now = found(disks={"node-1": FULL})
    assert now.full == {"node-1": "/var is 100 % full (0 MiB are free)"}
    assert (now.state, now.damaged) == ("degraded", {})
    assert now.words == [
        "node-1: /var is 100 % full (0 MiB are free): only you can decide what to delete"
    ]


SERVICES = {"slurm": {}, "docker": {}, "monitoring": {}, "jupyterlab": {}}


@pytest.fixture
def serving(found):
    """The same of a cluster with all services."""
    plan = sample_plan(nodes=[{"name": "node", "count": 3}], services=SERVICES)

    def look(**options):
        return found(plan=plan, **options)

    look.plan = plan
    return look


@pytest.mark.parametrize(
    ("node", "unit", "role"),
    [
        ("node-0", "slurmctld.service", "slurm"),
        ("node-2", "docker.service", "docker"),
        ("node-0", "prometheus.service", "monitoring"),
        ("node-1", "gpubed-firewall.service", "firewall"),
        ("node-0", "jupyterlab.service", "jupyterlab"),
    ],
)
def test_a_unit_that_does_not_run_is_damage(serving, node, unit, role):
    now = serving(units={(node, unit): DEAD})
    assert now.state == "degraded"
    assert now.damaged == {}, "the node itself is ready"
    assert now.words == [f"{unit} on {node} is inactive: role {role} is applied there again"]
    assert probe.unserved(serving.plan, now) == {role: [node]}
    with pytest.raises(GpubedError, match=f"{unit} on {node} is inactive") as caught:
        serving(units={(node, unit): DEAD}, verb=probe.require)
    assert caught.value.hint == f"gpubed ssh lab {node} sudo journalctl -b -u {unit}"


def test_a_lost_environment_is_damage_of_all_that_is_in_it(serving, found, tmp_path):
    """Where only JupyterLab was set up again, it started from what was not there, for ever."""
    python = "/shared/env/current/bin/python"
    gone = {("node-0", "files"): f"{python}\n"}
    assert serving(units=gone).state == "ready", "no role was applied yet"
    cluster = Project(tmp_path).cluster("lab")
    cluster.applied.mkdir(parents=True)
    wanted = roles.fingerprints(serving.plan, found.granted, cluster.inventory)
    for node in found.granted.nodes:
        (cluster.applied / f"{node.id}.json").write_text(json.dumps(wanted[node.name]))
    now = serving(units=gone)
    assert now.words == [f"{python} on node-0 is missing: role python_env is applied there again"]
    again = probe.unserved(serving.plan, now)
    assert {"python_env", "horovod", "jupyterlab"} <= set(again)
    assert again["horovod"] == [node.name for node in found.granted.nodes]
    with pytest.raises(GpubedError) as caught:
        serving(units=gone, verb=probe.require)
    assert caught.value.hint == f"gpubed ssh lab node-0 ls -l {python}"


def test_what_is_yet_to_be_set_up_is_not_damaged(serving, found, tmp_path):
    """A service that was just written into cluster.yml; once it was there, it is missed."""
    gone = {("node-1", "docker.service"): ABSENT}
    assert serving(units=gone).state == "ready"
    cluster = Project(tmp_path).cluster("lab")
    cluster.applied.mkdir(parents=True)
    wanted = roles.fingerprints(serving.plan, found.granted, cluster.inventory)
    for node in found.granted.nodes:
        (cluster.applied / f"{node.id}.json").write_text(json.dumps(wanted[node.name]))
    assert [one.why for one in serving(units=gone).stopped] == [
        "docker.service on node-1 is missing"
    ]


@pytest.mark.parametrize("unit", ["chrony.service", "nvidia-persistenced.service"])
def test_what_a_role_decides_on_the_node_counts_where_it_is_enabled(serving, unit):
    """A container has no clock of its own, and not every node a GPU."""
    assert serving(units={("node-1", unit): ABSENT}).state == "ready"
    refused = DEAD.replace("=yes", "=no")
    assert serving(units={("node-1", unit): refused}).state == "ready"
    assert serving(units={("node-1", unit): DEAD}).state == "degraded"


@pytest.fixture
def network(tmp_path):
    """A function that runs the look at a network; `ip`, `tc` and `ping` are STAND-INs."""

    def look(shaped, tc="qdisc htb 1:", ping=0, ip="2: eth1 inet 10.0.0.2/24", peer="10.0.0.1"):
        does = {"ip": f"echo '{ip}'", "tc": f"echo '{tc}'", "ping": f"exit {ping}"}
        for name, text in does.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
            (tmp_path / name).chmod(0o755)
        words = map(shlex.quote, ("10.0.0.2", shaped, peer))
        environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
        command = ["sh", "-c", probe._NETWORK % tuple(words)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    return look


@pytest.mark.process
def test_a_node_that_is_to_shape_its_link_does(network):
    """Also where the file that tells it how is gone: it was believed to have no rate then."""
    assert network("1") == ""
    assert network("1", tc="qdisc noqueue") == "unshaped"
    assert network("", tc="qdisc noqueue") == "", "others hold it to its rate"


@pytest.mark.process
def test_a_network_that_is_not_there_is_cut(network):
    assert network("1", ip="") == "cut"
    assert network("1", ping=1) == "cut"
    assert network("1", ping=1, peer="") == "", "nobody is cut off from a head that is not there"
