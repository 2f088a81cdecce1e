"""Own hosts that are not there, or not who they were; sessions with them are STAND-INS."""

import base64
import json
import os
import re
import shutil
import time
from types import SimpleNamespace

import pytest

from gpubed.backends.static import access, host, membership
from gpubed.core import progress, reading, runlock
from gpubed.core.errors import GpubedError
from gpubed.core.paths import Project
from gpubed.nodes.ssh import HostKeyMismatch, LoginRefused, Unreachable
from gpubed.testbeds import registry, specification
from gpubed.testbeds.driver import NodeFailed, Silent
from gpubed.testbeds.specification import load_plan
from support.samples import sample_allocation, sample_plan

# Numbers of hosts stand for their keys.
KEYS = {
    name: "ssh-ed25519 "
    + base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + bytes([number]) * 32).decode()
    for number, name in enumerate(("own", "others", "gate"), 1)
}
ADDRESS = "192.0.2.7"
MARK = json.dumps({"uuid": "u", "cluster": "lab", "node": "node-0", "id": "node-0-1"})
ELSEWHERE = ("192.0.2.8", 22)
HOST = {"address": ADDRESS, "port": 22, "experiment_address": None}
SPEC = """
version: 1
backend:
  type: static
  user: me
  known_hosts: {known}
  hosts: {{node: [{hosts}]}}
networks: {{control: {{subnet: 192.0.2.0/24}}}}
nodes: [{{count: {count}}}]
"""
LOOK = """
system=Debian
image=debian-12
user=me
sudo=yes
systemd=yes
python=3.11.2
driver=
clock={clock}
number=1000
slurm_number=
failed=
unfinished=
free_gib=99
addresses=192.0.2.7
own_address=192.0.2.7
ports=tcp:22
gpu_ids=
owner={owner}
"""


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A project with a cluster of one host; its specification names others, where told to."""
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    known = tmp_path / "known_hosts"
    known.write_text(f"{ADDRESS} {KEYS['own']}\n")
    paths = Project(tmp_path).cluster("lab")
    spec = paths.spec
    spec.parent.mkdir(parents=True)

    def names(*places, count=1):
        hosts = (f"{{address: {address}, port: {port}}}" for address, port in places)
        spec.write_text(SPEC.format(known=known, hosts=", ".join(hosts), count=count))

    names((ADDRESS, 22))
    config = {"type": "static", "user": "me", "key": "/me/key", "known_hosts": str(known)}
    inputs = {
        "cluster": "lab",
        "uuid": "u",
        "name": "node-0",
        "host": HOST,
        "config": config,
        "image": "debian-12",
        "gpus": 0,
        "public_key": "ssh-ed25519 AAAA",
    }
    testbed = registry.bound("static", paths)
    return SimpleNamespace(
        names=names,
        known=known,
        inputs=inputs,
        paths=paths,
        testbed=testbed,
        driver=testbed.driver("node"),
    )


@pytest.fixture
def told():
    notes = []
    progress.tell(lambda event: notes.append(event["message"]))
    yield notes
    progress.tell(None)


def test_each_host_has_an_experiment_address_of_its_own(lab):
    hosts = ", ".join(f"{{address: 192.0.2.{n}, experiment_address: 10.9.0.7}}" for n in (7, 8))
    text = SPEC.format(known=lab.known, hosts=hosts, count=2)
    network = "experiment: {rate: 1 Gbit/s, subnet: 10.9.0.0/24}"
    lab.paths.spec.write_text(text.replace("control: {subnet: 192.0.2.0/24}", network))
    _, [error] = specification.check(lab.paths.spec)
    assert error.path == "backend.hosts.node.1.experiment_address"
    assert error.message == "10.9.0.7 is listed twice"


def behind(error):
    error.on_the_way = True
    return error


def mismatch():
    return HostKeyMismatch("node-0", [KEYS["own"]], KEYS["others"])


def session(monkeypatch, answers, elsewhere=None):
    """Let every session answer with a function's words, or fail with its error.

    One at the host's other addresses answers as `elsewhere` does.
    """

    class Session:
        says = staticmethod(answers)

        def __init__(self, target, *_):
            self.node = target

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def at(self, _):
            there = Session(self.node)
            there.says = elsewhere
            return there

        def run(self, command, *args, **_):
            # Of sshd's lists of accounts, none keeps anybody out.
            said = "" if "shut-out" in args else self.says(*args)
            return SimpleNamespace(stdout=said, stderr="", exit_code=0)

    for module in ("node", "testbed"):
        monkeypatch.setattr(f"gpubed.backends.static.{module}.SSH", Session)


def fails(monkeypatch, error):
    def answers(*_):
        raise error

    session(monkeypatch, answers)


LIVES = [
    LoginRefused("the key /me/key for node-0 has a passphrase", "ssh-add /me/key"),
    behind(LoginRefused("gate does not accept the key /me/key")),
    behind(Unreachable("gate does not answer SSH")),
    behind(HostKeyMismatch("gate", [KEYS["gate"]], KEYS["others"])),
]


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("error", LIVES, ids=["passphrase", "hop refuses", "hop silent", "hop key"])
def test_who_may_live_is_not_taken_for_dead(lab, monkeypatch, told, error, named):
    lab.names((ADDRESS, 22) if named else ELSEWHERE)
    fails(monkeypatch, error)
    for ask in (lab.driver.delete, lab.driver.read):
        with pytest.raises(type(error)) as caught:
            ask("node-0-1", lab.inputs)
        assert caught.value is error
    granted = sample_allocation(sample_plan()).model_copy(update={"cluster": "lab"})
    states = lab.testbed.describe(granted)
    assert "away" not in states.values()
    assert told == []


def test_who_is_silent_is_waited_for_while_the_specification_names_it(lab, monkeypatch):
    fails(monkeypatch, Unreachable("node-0 does not answer SSH"))
    with pytest.raises(GpubedError, match="remove it from hosts"):
        lab.driver.delete("node-0-1", lab.inputs)
    with pytest.raises(Silent, match="does not answer"):
        lab.driver.read("node-0-1", lab.inputs)
    granted = sample_allocation(sample_plan()).model_copy(update={"cluster": "lab"})
    assert set(lab.testbed.describe(granted).values()) == {"away"}


@pytest.mark.parametrize("error", [Unreachable("node-0 does not answer SSH"), mismatch()])
@pytest.mark.parametrize("place", [ELSEWHERE, (ADDRESS, 2222)])
def test_a_host_that_nobody_can_log_in_to_goes_with_its_name(lab, monkeypatch, told, error, place):
    lab.names(place)
    fails(monkeypatch, error)
    lab.driver.delete("node-0-1", lab.inputs)
    [note] = told
    assert error.message in note
    assert f"sudo sh /etc/gpubed/release {lab.inputs['uuid']}   (packages" in note
    with pytest.raises(Silent):
        lab.driver.read("node-0-1", lab.inputs)


@pytest.mark.process
@pytest.mark.parametrize("named", [True, False])
def test_so_does_one_whose_key_nobody_knows(lab, told, named):
    lab.names((ADDRESS, 22) if named else ELSEWHERE)
    lab.known.write_text("")
    if named:
        for ask in (lab.driver.delete, lab.driver.read):
            with pytest.raises(access.UnknownHost):
                ask("node-0-1", lab.inputs)
        return
    lab.driver.delete("node-0-1", lab.inputs)
    assert "is not in" in told[0]
    with pytest.raises(Silent):
        lab.driver.read("node-0-1", lab.inputs)


def test_a_host_that_says_it_is_a_node_gives_it_no_folders_name():
    """The node's files on the controller are called by it."""
    mark = {"uuid": "u", "cluster": "lab", "node": "node-0", "id": "../../inventories/lab/x"}
    said = LOOK.format(clock=int(time.time()), owner=json.dumps(mark))
    with pytest.raises(GpubedError, match="id"):
        host.parsed(reading.reply(said, "what node-0 says of itself", "look there"), "node-0")


@pytest.fixture
def inside(monkeypatch):
    """A function that lets a host see itself at 10.0.0.5, where it answers as told."""
    ran = []

    def put(answers_there):
        def answers(script=""):
            if script == host.LOOK:
                return LOOK.format(clock=int(time.time()), owner="").replace(
                    f"own_address={ADDRESS}", "own_address=10.0.0.5"
                )
            ran.append(script)
            return ""

        session(monkeypatch, answers, answers_there)
        return ran

    return put


def test_a_host_whose_own_address_leads_nowhere_from_here_is_not_marked(lab, inside):
    """As behind a forwarded port: a cluster logs in where the host sees itself."""

    def nobody():
        raise Unreachable("node-0 does not answer SSH on 10.0.0.5:22")

    ran = inside(nobody)
    with pytest.raises(NodeFailed, match=r"sees itself at 10\.0\.0\.5.*does not answer") as caught:
        lab.driver.create(lab.inputs)
    assert "bastion" in caught.value.hint
    assert ran == []
    plan = load_plan(lab.paths.spec)
    for said in (lab.testbed.doctor(plan.spec), lab.testbed.refusals(plan)):
        [found] = said
        assert not found.ok
        assert "sees itself at 10.0.0.5" in found.message
        assert "bastion" in found.fix


def test_a_host_that_answers_at_its_own_address_too_is_taken(lab, inside):
    ran = inside(lambda: "")
    _, result = lab.driver.create(lab.inputs)
    assert result["control_address"] == "10.0.0.5"
    assert any(membership.MARK in script for script in ran)
    plan = load_plan(lab.paths.spec)
    assert [found.ok for found in lab.testbed.doctor(plan.spec)] == [True]
    assert lab.testbed.refusals(plan) == []


@pytest.fixture
def scripts(monkeypatch):
    """The scripts that a host ran which is marked as node-0, besides what it was asked."""
    ran = []

    def answers(script=""):
        if script == host.LOOK:
            return LOOK.format(clock=int(time.time()), owner=MARK)
        ran.append(script)
        return ""

    session(monkeypatch, answers)
    return ran


def test_a_host_that_becomes_another_node_is_let_go_by_that_one(lab, scripts):
    """Engines remove what they replace first: roles keep there what goes on with the host."""
    lab.names(ELSEWHERE, (ADDRESS, 22), count=2)
    with runlock.hold(lab.paths.state, "up"):
        lab.driver.delete("node-0-1", lab.inputs)
        [taken] = scripts
        assert membership.MARK not in taken, "it says whose it is, should that node never come"
        assert "getent passwd me" in taken.replace('"$user"', "me"), "it may be another account"
        lab.driver.create(lab.inputs | {"name": "node-1"})
    assert next(how(script) for script in scripts if "leave.d" in script) == "stays"


def how(script):
    """What a script that lets a host go tells the hooks of roles."""
    return re.search("(?m)^how=(.*)$", script)[1].strip("'")


@pytest.mark.parametrize(
    ("verb", "places", "told"),
    [
        ("down", [ELSEWHERE, (ADDRESS, 22)], ""),
        ("up", [ELSEWHERE, ("192.0.2.9", 22)], ""),
        ("up", [ELSEWHERE, ("192.0.2.9", 22), (ADDRESS, 22)], ""),
        ("up", [(ADDRESS, 22), ELSEWHERE], "stays"),
    ],
    ids=["down", "in hosts no more", "more hosts than nodes", "made anew"],
)
def test_a_host_goes_with_all_that_roles_made_unless_it_stays_a_node(
    lab, scripts, verb, places, told
):
    lab.names(*places, count=2)
    with runlock.hold(lab.paths.state, verb):
        lab.driver.delete("node-0-1", lab.inputs)
    lab.driver.delete("node-0-1", lab.inputs)  # as plain `pulumi destroy` calls it
    assert [how(script) for script in scripts] == [told, ""]


@pytest.mark.process
def test_an_alias_is_named_with_what_it_stands_for(lab, monkeypatch, tmp_path):
    """OpenSSH follows it, so that logging in by hand once would change nothing."""
    config = tmp_path / "config"
    config.write_text("Host gpu1\n HostName 192.0.2.7\n Port 2222\n User bob\n ProxyJump gate\n")
    ssh = tmp_path / "bin/ssh"
    ssh.parent.mkdir()
    ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {config} "$@"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    lab.names(("gpu1", 22))
    [found] = lab.testbed.doctor(load_plan(lab.paths.spec).spec)
    assert "gpu1 is an alias in your ssh configuration" in found.message
    assert "address: 192.0.2.7, port: 2222, user: bob; bastions: gate" in found.fix
    assert "gpubed init NAME --from ~/.ssh/config" in found.fix


@pytest.fixture
def judged(lab, monkeypatch):
    """A function that says what is wrong with two hosts, one of which answers with other facts."""
    lab.names((ADDRESS, 22), ELSEWHERE, count=2)
    lab.known.write_text("".join(f"{a} {KEYS['own']}\n" for a in (ADDRESS, ELSEWHERE[0])))
    usual = LOOK.format(clock=int(time.time()), owner="")

    def judge(spec="", **facts):
        answers = [usual, usual]
        for name, value in facts.items():
            answers[1] = re.sub(f"(?m)^{name}=.*$", f"{name}={value}", answers[1])
        monkeypatch.setattr(
            "gpubed.backends.static.testbed.candidate",
            lambda ssh, _: host.parsed(reply(answers[ssh.node.name == "node-1"]), "n"),
        )
        now = time.time()
        monkeypatch.setattr("time.time", lambda: now)
        session(monkeypatch, lambda *_: "")
        lab.paths.spec.write_text(lab.paths.spec.read_text() + spec)
        plan = load_plan(lab.paths.spec)
        found = lab.testbed.doctor(plan.spec)
        assert [f for f in found if not f.ok] == lab.testbed.refusals(plan)
        return [f.message for f in found if not f.ok] or [f.message for f in found]

    return judge


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"image": "fedora-42"}, "node-1 (192.0.2.8) runs fedora-42, but cluster.yml says image:"),
        ({"ports": ""}, "node-1 (192.0.2.8) has no ss"),
    ],
)
def test_a_host_that_cannot_be_a_node_is_named(judged, facts, said):
    assert said in "\n".join(judged(**facts))


@pytest.mark.parametrize(
    ("rules", "refused"),
    [
        ("", False),
        ("on", True),
        ("on 192.0.2.9", True),
        ("on 192.0.2.0/25", True),
        ("on 192.0.0.0/16", False),
        ("on Anywhere", False),
    ],
)
def test_a_ufw_that_keeps_nodes_apart_is_named_with_the_rule(lab, monkeypatch, rules, refused):
    lab.names((ADDRESS, 22), ELSEWHERE, count=2)
    lab.known.write_text("".join(f"{a} {KEYS['own']}\n" for a in (ADDRESS, ELSEWHERE[0])))
    usual = LOOK.format(clock=int(time.time()), owner="") + f"ufw={rules}\n"
    session(monkeypatch, lambda *_: usual, lambda *_: "")
    found = lab.testbed.refusals(load_plan(lab.paths.spec))
    assert all("sudo ufw allow from 192.0.2.0/24" in one.message for one in found)
    assert bool(found) == refused


def test_plan_tells_what_the_firewall_leaves_open(lab, monkeypatch):
    usual = LOOK.format(clock=int(time.time()), owner="")
    usual = usual.replace("ports=tcp:22", "ports=udp:68 tcp:8080 tcp:22 $(x)\nforwards=1")
    session(monkeypatch, lambda *_: usual)
    [found] = lab.testbed.fits(load_plan(lab.paths.spec))
    assert found.ok
    assert "leaves open tcp 22, tcp 8080, udp 68, and what the host forwards" in found.message


def reply(said):
    return reading.reply(said, "what a host says of itself", "look there")


@pytest.mark.parametrize(
    ("spec", "facts", "said"),
    [
        ("services: {slurm: {}}", {"slurm_number": "1234"}, "slurm has the number 64030 on node-0"),
        ("storage: {shared: {provider: nfs}}", {"number": "1001"}, "me has the number 1000 on no"),
        ("", {"slurm_number": "1234"}, "node-0 (192.0.2.7): Debian"),
        ("", {"clock": "1"}, "node-1 (192.0.2.8) has a clock that differs from this machine's"),
        ("", {"driver": "570.12"}, "differ in NVIDIA driver: none on node-0, 570.12 on node-1"),
    ],
)
def test_numbers_of_accounts_must_be_equal_where_they_count(judged, spec, facts, said):
    assert said in "\n".join(judged(spec, **facts))
