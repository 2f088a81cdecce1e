"""What is saved before a lease ends; the head is a STAND-IN."""

from types import SimpleNamespace

import pytest

from gpubed.cluster import before_end
from gpubed.core.copying import NotAName
from gpubed.core.errors import GpubedError
from gpubed.core.paths import Project
from gpubed.nodes.ssh import Unreachable
from support.samples import sample_plan

RUNS = ("digits-1", "digits-2", "digits-3")


class Head:
    """A head with three runs, of which some cannot be had."""

    def __init__(self, **errors):
        self.errors = errors
        self.copied = []

    def run(self, *_):
        return SimpleNamespace(stdout="\n".join(RUNS))

    def get(self, remote, local):
        name = remote.rsplit("/", 1)[-1]
        if error := self.errors.get(name.replace("-", "_")):
            raise error
        self.copied.append(name)
        return [f"'{name}.sock' is left out"] if name == "digits-2" else []


@pytest.fixture
def cluster(tmp_path):
    return Project(tmp_path).cluster("lab")


def test_a_run_that_fails_keeps_no_other_from_coming(cluster):
    head = Head(digits_1=GpubedError("cannot copy files with node-0: may not be read"))
    with pytest.raises(GpubedError, match=r"1 of 3 run.*digits-1: cannot copy.*not be read"):
        before_end.collect(head, cluster, sample_plan())
    assert head.copied == ["digits-2", "digits-3"]


@pytest.mark.parametrize("error", [Unreachable("node-0 does not answer"), NotAName("'..'")])
def test_where_nothing_more_can_be_had_that_is_told_at_once(cluster, error):
    head = Head(digits_2=error)
    with pytest.raises(type(error), match=error.message):
        before_end.collect(head, cluster, sample_plan())
    assert head.copied == ["digits-1"]


def test_runs_that_are_here_are_not_fetched_again(cluster):
    (cluster.runs / "digits-1").mkdir(parents=True)
    (cluster.runs / "digits-1" / "metrics.json").write_text("{}")
    came = before_end.collect(Head(), cluster, sample_plan())
    assert came == {"digits-2": ["'digits-2.sock' is left out"], "digits-3": []}
