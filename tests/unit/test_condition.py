"""How a cluster is; sessions and the testbed are STAND-INs."""

from types import SimpleNamespace

import pytest

from gpubed import applied, condition
from gpubed.errors import GpubedError
from gpubed.paths import Project
from gpubed.ssh import HostKeyMismatch, Unreachable
from support.samples import sample_allocation, sample_plan


@pytest.fixture
def found(monkeypatch, tmp_path):
    """A function that looks at a cluster: what the testbed says, then what nodes answer."""
    plan = sample_plan(nodes=[{"name": "node", "count": 3}])
    granted = sample_allocation(plan)

    def look(testbed=None, answers=None, services=None, disks=None, verb=condition.look):
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
                if " df " in command:
                    return SimpleNamespace(stdout=(disks or {}).get(self.name, ""))
                return SimpleNamespace(stdout=self.said)

        states = {node.name: "ready" for node in granted.nodes} | (testbed or {})
        monkeypatch.setattr(condition, "SSH", Session)
        monkeypatch.setattr(condition.services, "answers", lambda *_: services or {})
        backend = SimpleNamespace(describe=lambda _: states)
        return verb(Project(tmp_path).cluster("lab"), plan, granted, backend)

    look.granted = granted
    return look


def test_a_whole_cluster_is_ready(found):
    now = found()
    assert (now.state, now.words, now.damaged) == ("ready", [], {})


def test_each_damage_is_named_with_what_becomes_of_it(found):
    stranger = HostKeyMismatch("node-2", ["ssh-ed25519 AAAA"], "ssh-ed25519 BBBB")
    now = found({"node-0": "missing"}, {"node-1": "cut\n", "node-2": stranger})
    assert now.nodes == {"node-0": "missing", "node-1": "cut", "node-2": "unrecognized"}
    assert now.state == "degraded"
    assert now.words[:2] == [
        "node-0 is missing: it is made again",
        "node-1 is cut: it is connected again",
    ]


def test_a_node_that_does_not_answer_is_none_that_is_ready(found):
    assert found(answers={"node-1": Unreachable("no")}).nodes["node-1"] == "unreachable"


def test_a_service_that_does_not_answer_is_damage(found):
    now = found(services={"jupyterlab": "it does not answer"})
    assert now.state == "degraded"
    assert now.words == ["it does not answer: it is set up again and restarted"]


FULL = "Mounted on Use% Avail IUse% IFree\n/var 100% 0 4% 9000\n"


def test_a_full_disk_is_named_and_no_reason_to_make_the_node_again(found):
    now = found(disks={"node-1": FULL})
    assert now.full == {"node-1": "/var is 100 % full (0 MiB are free)"}
    assert (now.state, now.damaged) == ("degraded", {})
    assert now.words == ["node-1: /var is 100 % full (0 MiB are free): only you know what may go"]


def test_what_nobody_but_the_user_can_put_right_says_where(found):
    with pytest.raises(GpubedError, match="node-1: /var is 100 % full") as caught:
        found(disks={"node-1": FULL}, verb=condition.require)
    assert caught.value.hint == "free space there: gpubed ssh lab node-1, then gpubed up lab"


def test_what_is_still_broken_leads_elsewhere(found):
    with pytest.raises(GpubedError, match="node-1 is unreachable, and local could not") as caught:
        found(answers={"node-1": Unreachable("no")}, verb=condition.require)
    assert "console" in caught.value.hint


def test_what_was_cut_is_configured_again(found, tmp_path):
    cluster = Project(tmp_path).cluster("lab")
    cluster.applied.mkdir(parents=True)
    for node in found.granted.nodes:
        (cluster.applied / f"{node.id}.json").write_text('{"base": "1", "jupyterlab": "2"}')
    names = [node.name for node in found.granted.nodes]
    wanted = {name: {"base": "1", "jupyterlab": "2"} for name in names}
    assert applied.missing(cluster, found.granted, wanted) == {}
    applied.forget(cluster, found.granted, (), {"jupyterlab"})
    assert applied.missing(cluster, found.granted, wanted) == {"jupyterlab": names}
    applied.forget(cluster, found.granted, ["node-1"], ())
    assert applied.missing(cluster, found.granted, wanted)["base"] == ["node-1"]
