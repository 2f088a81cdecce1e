"""Jobs that GPULab no longer lists are found by what a run wrote down of them."""

import json

import pytest

from gpubed.backends.gpulab import record, testbed
from gpubed.backends.gpulab.client import PAGE, NoSuchJob
from gpubed.backends.gpulab.remote import RemoteJob
from gpubed.core.errors import GpubedError
from gpubed.core.paths import Project
from gpubed.testbeds import registry
from support.bound import kind

UUID = "6f0c0000-0000-4000-8000-000000000000"


def job(number, status, name=None, labels=f"gpubed.cluster={UUID} gpubed.name=gl"):
    id_ = f"00000000-0000-4000-8000-{number:012d}"
    said = {"uuid": id_, "name": name or f"job-{number}", "description": labels}
    return RemoteJob.model_validate({**said, "state": {"status": status}})


class Listing:
    """A STAND-IN for GPULab: a page of jobs of the account, and some that are older."""

    def __init__(self, listed, older):
        self.listed, self.older, self.asked = listed, {one.uuid: one for one in older}, []

    def jobs(self):
        return list(self.listed)

    def job(self, id_):
        self.asked.append(id_[-2:])
        if id_ not in self.older:
            raise NoSuchJob("none")
        return self.older[id_]


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    paths = Project(tmp_path).cluster("gl")
    monkeypatch.setattr(kind("gpulab"), "_config", None)

    def make(service, *rows):
        monkeypatch.setattr(testbed, "Client", lambda _: service)
        run = paths.runs / "r1"
        run.mkdir(parents=True)
        (run / record.NAME).write_text(json.dumps(rows))
        return registry.bound("gpulab", paths)

    return make


def row(number, **more):
    one = job(number, "RUNNING")
    return {"name": one.name, "id": one.uuid, **more}


PAGEFUL = [job(number, "FINISHED", labels="") for number in range(1000, 1000 + PAGE)]


def test_a_job_that_is_no_longer_listed_is_asked_for_by_its_id(cluster):
    service = Listing([*PAGEFUL[1:], job(2, "RUNNING")], [job(1, "RUNNING"), job(3, "FINISHED")])
    rows = (row(1), row(2, open=True), row(3, open=True), row(4, open=False), row(5, open=True))
    bound = cluster(service, *rows)
    assert [thing.name for thing in bound.existing()] == ["job-2", "job-1"]
    assert service.asked == ["01", "03", "05"], "not what is listed, nor what has ended"
    assert [one.name for one in bound.jobs(UUID)] == ["job-2", "job-1", "job-3"]


def test_one_whose_id_nobody_knows_may_be_beyond_the_page(cluster):
    lost = {"name": "job-1", "id": "", "open": True}
    bound = cluster(Listing(PAGEFUL, []), lost, {"name": "job-2", "id": "", "open": False})
    with pytest.raises(GpubedError, match="whether job job-1 exists is not known") as caught:
        bound.existing()
    assert "then: rm " in caught.value.hint
