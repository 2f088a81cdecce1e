"""A node whose disk is full: found by `df`, named by `status`, `up` and `verify`."""

from types import SimpleNamespace

import pytest

from gpubed.checks import storage
from gpubed.checks.context import Context
from gpubed.nodes import disks
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.ssh import CommandResult
from support.samples import sample_allocation, sample_plan

HEAD = "Mounted on     Use% Avail IUse% IFree\n"
ROOMY = "/               37% 40000    4% 3000000\n"


class Session:
    """A STAND-IN for a session: `df` says what is given, writing fails where it is full."""

    def __init__(self, df=ROOMY, refuses=""):
        self.df, self.refuses = df, refuses

    def run(self, command, *words, **_):
        if " df " in command:
            return CommandResult(HEAD + self.df, "", 0, 0.1)
        if self.refuses and "echo" in command:
            return CommandResult("", self.refuses, 2, 0.1)
        return CommandResult("", "", 0, 0.1)


def looked(df):
    return disks.look(Session(df), "/shared")


@pytest.mark.parametrize(
    ("df", "words"),
    [
        (ROOMY, None),
        ("/var 100% 0 4% 9000\n", "/var is 100 % full (0 MiB are free)"),
        ("/var 37% 900 100% 0\n", "/var has no room for another file (100 % of its inodes)"),
        ("/data 100% 180000 1% 9000\n", None),  # 180 GiB of a big disk are no need
        ("/home 98% 90 - -\n", None),
        ("/home 100% 90 - -\n", "/home is 100 % full (90 MiB are free)"),
        ("/proc - 0 - -\n", None),
    ],
)
def test_what_is_full_is_named_with_its_percentage(df, words):
    assert disks.full(looked(df)) == ([words] if words else [])


def test_a_node_that_says_something_else_is_not_full():
    assert looked("cut\n") == []


def checks(check, *sessions):
    plan = sample_plan(nodes=[{"name": "node", "count": len(sessions)}])
    granted = sample_allocation(plan)
    by_name = {node.name: one for node, one in zip(granted.nodes, sessions, strict=True)}
    return list(check(Context(Cluster(SimpleNamespace(name="lab"), plan, granted), by_name)))


def test_verify_names_node_file_system_and_percentage():
    well, full = checks(storage.space, Session(), Session(ROOMY + "/var 100% 0 4% 9000\n"))
    assert (well.id, well.node, well.result, well.value) == ("storage.space", "node-0", "pass", 37)
    assert (full.node, full.result, full.value, full.unit) == ("node-1", "fail", 100, "%")
    assert full.reason == "/var is 100 % full (0 MiB are free)"


def test_where_a_node_cannot_write_the_shared_storage_it_says_why():
    """And the checks go on."""
    refused = "sh: cannot create: No space left on device"
    _, full = checks(storage.shared, Session(), Session(refuses=refused))
    assert full.result == "fail"
    assert full.reason == f"/shared cannot be written to: {refused}"
