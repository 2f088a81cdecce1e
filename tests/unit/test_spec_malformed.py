"""Specifications that nobody should write: each is refused with file and line, quickly.

Every one goes through the command line's own entry, so that a traceback, another
exit code or a hang would show.
"""

import copy
import json
import os
import time

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gpubed import cli
from gpubed.testbeds import specification

WHOLE = {
    "version": 1,
    "owner": "someone",
    "backend": {"type": "local", "runtime": "container"},
    "nodes": [
        {
            "name": "node",
            "count": 2,
            "min": 1,
            "machine": {"cpus": 1, "memory": "1 GiB"},
            "gpus": 0,
            "image": "debian-12",
        }
    ],
    "networks": {
        "control": {"subnet": "10.10.0.0/24"},
        "experiment": {"subnet": "10.11.0.0/24", "rate": "1 Gbit/s", "mtu": 1500},
    },
    "storage": {"shared": {"provider": "volume", "path": "/shared"}},
    "recipe": "cpu",
    "services": {"jupyterlab": {"port": 8888}, "monitoring": {"port": 9090, "retention": "15 d"}},
    "firewall": {
        "enabled": True,
        "open": [{"port": 80, "protocol": "tcp", "source": "10.0.0.0/8", "comment": "web"}],
    },
    "lease": {"duration": "2 h"},
    "configure": True,
}
HUGE = "9" * 5000
TEXTS = [[], {}, True, 7, "x\ny"]
INTEGERS = ["many", -1, 1.5, [], {}, None, 10**30, float("nan"), float("inf")]
SUBNETS = ["", "here", "10.0.0.1/8", "10.0.0.0/33", "fd00::/64", "10.0.0.0/30", [], {}, True]
RATES = ["", "fast", "1 Gbyte/s", "-1 Gbit/s", "0", 0, [], {}, True, None, HUGE, float("inf")]
MAPPINGS = ["", "text", 7, [], [1], True, None]
# What a value must not be, by its place.
WRONG = {
    ("version",): [0, 2, "one", [], {}, None, 1.5],
    ("owner",): [[], {}, 7, "x" * 201],
    ("backend",): [*MAPPINGS, {}, {"type": None}, {"type": "openstak"}, {"flavor": "big"}],
    ("backend", "type"): ["", "locla", "LOCAL", 7, [], {}, None],
    ("backend", "runtime"): ["vmm", "", 7, [], None],
    ("backend", "login_pem"): ["of another backend"],
    ("nodes",): [*MAPPINGS, {}, [[]], [{}], [None], ["node"], [{"count": 1}] * 2, [{}] * 11],
    ("nodes", 0, "name"): ["", "Node", "n_1", "-n", "n-", "1n", "x" * 31, "é", *TEXTS, None],
    ("nodes", 0, "count"): [0, 1001, HUGE, "2 nodes", *INTEGERS],
    ("nodes", 0, "min"): [0, 3, "one", -1, [], {}],
    ("nodes", 0, "machine"): ["", "text", 7, [], {"cpu": 1}, {"cpus": 0, "memroy": 1}],
    ("nodes", 0, "simulate"): [{}, {"modle": "A100-SXM4-80GB"}],
    ("nodes", 0, "machine", "cpus"): [0, -1, 1025, "all", [], {}, True, float("nan"), float("inf")],
    ("nodes", 0, "machine", "memory"): ["", "1 GiBB", -1, 0, [], {}, True, HUGE, "1000 TiB"],
    ("nodes", 0, "gpus"): [17, 1, *INTEGERS],
    ("nodes", 0, "image"): ["", "debian-7", "windows", *TEXTS, None],
    ("nodes", 0, "cuont"): [1],
    ("networks",): ["", "text", 7, [], {"control": 7}],
    ("networks", "control", "subnet"): [*SUBNETS, "10.11.0.0/16", "127.0.0.0/8", "224.0.0.0/8"],
    ("networks", "experiment", "subnet"): [*SUBNETS, "10.10.0.0/24", "0.0.0.0/0"],
    ("networks", "experiment", "rate"): RATES,
    ("networks", "experiment", "mtu"): [0, 1279, 9217, *INTEGERS],
    ("networks", "experiment", "latency"): ["", "slow", -1, [], {}, True, HUGE],
    ("networks", "experiment", "loss"): [1, False, 2, -0.1, "some", [], {}, float("nan")],
    ("networks", "storage"): [{}],
    ("storage", "shared", "provider"): ["nfss", "", 7, [], None],
    ("storage", "shared", "path"): ["", "shared", "/", "/a b", "/x\n", "/../", 7, [], None],
    ("recipe",): ["", "cuda", "CPU", "../cpu", *TEXTS[:4], None],
    ("services", "jupyterlab", "port"): [0, 80, 65536, "web", *INTEGERS],
    ("services", "jupyterlab", "sources"): [[True], [0], "10.0.0.0/8"],
    ("services", "slurm"): [
        {"users": [{"name": "al", key: True}]} for key in ("share", "max_gpus")
    ],
    ("services", "monitoring", "port"): [0, 80, 65536, "web", *INTEGERS],
    ("services", "monitoring", "retention"): ["", "long", "1 min", -1, [], {}, True, None],
    ("services", "jupyterhub"): [{}],
    ("firewall", "enabled"): ["perhaps", 2, [], {}, None],
    ("firewall", "open"): ["80", 80, {}, [80], [{}], None],
    ("firewall", "open", 0, "port"): [0, 65536, "http", True, *INTEGERS],
    ("firewall", "open", 0, "protocol"): ["icmp", "", 6, [], None],
    ("firewall", "open", 0, "source"): [*SUBNETS[:5], "::/0", 0, [], {}, True, None],
    ("firewall", "open", 0, "comment"): ['say "x"', "x\ny", "\\", "x" * 81, 7, [], None],
    ("lease", "duration"): ["", "forever", 0, -1, "1 fortnight", [], {}, True, None, HUGE],
    ("configure",): ["perhaps", 2, [], {}, None],
}
BOMB = b"a: &a [x,x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (n + 1, n + 1, b",".join([b"*%c" % n] * 10)) for n in range(97, 105)
)
RAW = {
    "empty": b"",
    "only a comment": b"# nothing\n",
    "a list": b"- version: 1\n",
    "a word": b"version\n",
    "open bracket": b"version: 1\nnodes: [\n",
    "open quote": b'version: 1\nowner: "me\n',
    "tab as indentation": b"version: 1\nbackend:\n\ttype: local\n",
    "wrong indentation": b"version: 1\n  backend: {}\n",
    "duplicate key": b"version: 1\nversion: 1\n",
    "two documents": b"version: 1\n---\nversion: 1\n",
    "unknown anchor": b"version: *v\n",
    "recursive anchor": b"nodes: &n\n  - *n\n",
    "alias bomb": BOMB,
    "merge key": b"a: &a {b: 1}\n<<: *a\n",
    "python tag": b"owner: !!python/object/apply:os.system ['true']\n",
    "own tag": b"owner: !secret x\n",
    "binary tag": b"owner: !!binary aGVsbG8=\n",
    "set": b"nodes: !!set {a, b}\n",
    "key that is a list": b"? [a, b]\n: 1\n",
    "impossible date": b"owner: 2026-13-45\n",
    "latin-1": "owner: Müller\n".encode("latin-1"),
    "utf-16": "version: 1\n".encode("utf-16"),
    "utf-32": "version: 1\n".encode("utf-32"),
    "nul": b"version: 1\nowner: \x00\n",
    "control character": b"version: 1\nowner: \x07\n",
    "lone surrogate": b"owner: \xed\xa0\x80\n",
    "half a character": b"owner: \xe2\x82\n",
    "deep list": b"nodes: " + b"[" * 30_000,
    "deep mapping": b"{a: " * 10_000,
    "deep block": b"".join(b" " * n + b"a:\n" for n in range(300)),
    "deep dashes": b"- " * 30_000,
    "many values": b"nodes: [" + b"1," * 30_000 + b"1]\n",
    "too large": b"# " + b"x" * 70_000,
    "a directive": b"%YAML 9.9\n---\nversion: 1\n",
    "windows path": b'owner: "C:\\new"\n',
    "json with a comma": b'{"version": 1,}}\n',
    "infinite number": b"version: .inf\n",
    "octal version": b"version: 0o1\n",
    "long integer": b"version: " + b"9" * 6000 + b"\n",
    "xml": b"<version>1</version>\n",
    "shell": b"#!/bin/sh\nrm -rf /\n",
    "random bytes": bytes(range(256)),
}


def with_value(path, value):
    document = copy.deepcopy(WHOLE)
    owner = document
    for part in path[:-1]:
        owner = owner[part]
    owner[path[-1]] = value
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True).encode()


CASES = [
    pytest.param(with_value(path, value), id=f"{'.'.join(map(str, path))}={str(value)[:20]!r}")
    for path, values in WRONG.items()
    for value in values
] + [pytest.param(raw, id=name) for name, raw in RAW.items()]


@pytest.fixture
def check(tmp_path, monkeypatch, capsys):
    """Runs `gpubed check lab --json` on some bytes; returns exit code and errors."""
    path = tmp_path / "inventories" / "lab" / "cluster.yml"
    path.parent.mkdir(parents=True)
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["gpubed", "check", "lab", "--json"])

    def check(raw=None):
        if raw is not None:
            path.write_bytes(raw)
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return end.value.code, json.loads(said.out)["errors"]

    check.path = path
    return check


def test_there_are_at_least_200_and_the_whole_one_is_right(check):
    assert len(CASES) >= 200
    assert check(with_value(("version",), 1)) == (0, [])


@pytest.mark.parametrize("raw", CASES)
def test_a_malformed_specification_is_refused_with_file_and_line(check, raw):
    started = time.process_time()  # of this process alone: others may keep the machine busy
    code, errors = check(raw)
    assert time.process_time() - started < 2
    assert code == 2
    last = max(1, raw.count(b"\n") + 1)
    assert errors
    for error in errors:
        assert error["file"] == str(check.path)
        assert 1 <= error["line"] <= last
        assert error["message"]
        assert len(error["message"]) < 400, "nobody reads that"


EVIL = '/k"\n  ProxyCommand sh -c id\n  IdentityFile "/k'


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("owner",), "me\nHost *"),
        (("backend", "key"), EVIL),
        (("backend", "key"), '/k" "/l'),
        (("backend", "known_hosts"), EVIL),
        (("backend", "bastions", 0, "key"), EVIL),
        (("backend", "bastions", 0, "key"), "/k\x1b[2J"),
        (("firewall", "open", 0, "comment"), "web\rx"),
    ],
)
def test_no_value_adds_a_line_to_a_configuration_file(check, place, value):
    """A key of this kind became lines of ssh_config: its ProxyCommand ran on the controller."""
    document = {
        "version": 1,
        "backend": {
            "type": "static",
            "user": "me",
            "bastions": [{"address": "192.0.2.9"}],
            "hosts": {"node": [{"address": "192.0.2.1"}]},
        },
        "nodes": [{"count": 1}],
        "firewall": {"open": [{"port": 80}]},
    }
    assert check(yaml.safe_dump(document).encode()) == (0, [])
    owner = document
    for part in place[:-1]:
        owner = owner[part]
    owner[place[-1]] = value
    code, errors = check(yaml.safe_dump(document).encode())
    assert code == 2
    assert {error["path"] for error in errors} == {".".join(map(str, place))}


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "loop", "device"])
def test_what_is_not_a_file_is_refused(check, kind):
    make = {
        "missing": lambda path: None,
        "folder": lambda path: path.mkdir(),
        "pipe": os.mkfifo,
        "loop": lambda path: path.symlink_to(path),
        "device": lambda path: path.symlink_to("/dev/zero"),
    }
    make[kind](check.path)
    code, [error] = check()
    assert code == 2
    assert error["line"] == 1


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(WRONG, key=str)), anything)
def test_any_value_anywhere_is_planned_or_refused(tmp_path_factory, path, value):
    folder = tmp_path_factory.mktemp("lab")
    file = folder / "cluster.yml"
    file.write_bytes(with_value(path, value))
    found, errors = specification.planned(file)
    assert (found is None) == bool(errors)
