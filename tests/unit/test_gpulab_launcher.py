"""Submissions without an answer, and what a run writes down of its jobs."""

import json
from types import SimpleNamespace

import pytest

from gpubed.backends.gpulab import launcher, record, testbed
from gpubed.backends.gpulab.client import PAGE, NoSuchJob, Unanswered
from gpubed.backends.gpulab.remote import RemoteJob
from gpubed.core import progress
from gpubed.core.errors import GpubedError, Refused
from gpubed.core.paths import Project
from gpubed.testbeds import registry
from support.bound import kind

UUID = "6f0c0000-0000-4000-8000-000000000000"


def job(number, status, name=None, labels=f"gpubed.cluster={UUID} gpubed.name=gl"):
    id_ = f"00000000-0000-4000-8000-{number:012d}"
    said = {"uuid": id_, "name": name or f"job-{number}", "description": labels}
    return RemoteJob.model_validate({**said, "state": {"status": status}})


class Service:
    """A STAND-IN for GPULab: answers no submission but says which jobs there are, when asked.

    Args:
        answers: For each submission its id, or what is raised.
        listed: For each look its jobs; the last one stays.
    """

    def __init__(self, answers=(), listed=((),)):
        self.answers, self.listed = list(answers), list(listed)
        self.submitted, self.cancelled = [], []

    def submit(self, definition):
        self.submitted.append(definition.name)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def jobs(self):
        return self.listed.pop(0) if len(self.listed) > 1 else self.listed[0]

    def job(self, id_):
        return next(one for one in self.ends() if one.uuid == id_)

    def ends(self):
        return [job(number, "FAILED") for number in range(9)]

    def log(self, *_):
        return b""

    def events(self, _):
        return []

    def cancel(self, id_):
        self.cancelled.append(id_)

    def is_over(self, _):
        return True


@pytest.fixture
def run(tmp_path, monkeypatch):
    options = SimpleNamespace(parallel=2, patience=None)
    monkeypatch.setattr(launcher.request, "config", lambda _: options)
    quick = SimpleNamespace(times=(0.001, 1.0, 0.001, 0.02))

    def make(service, count):
        plan, task = SimpleNamespace(cluster="gl", spec=None), SimpleNamespace(here=tmp_path)
        worlds = [SimpleNamespace(label=f"trial {n}", here=tmp_path) for n in range(count)]
        jobs = [
            launcher._Job(world, SimpleNamespace(name=f"job-{n}"), launcher.Parcel("m", set()), "")
            for n, world in enumerate(worlds)
        ]
        said = []
        return launcher._Run(quick, service, plan, task, jobs, said.append), jobs, said

    return make


def written(folder):
    return [(row["id"][-1:], row["open"]) for row in json.loads((folder / record.NAME).read_text())]


LATE = Unanswered("GPULab does not answer: timed out", "then repeat the command")


def test_a_job_that_is_listed_late_is_followed(run, tmp_path):
    service = Service([LATE], [(), (), (), (job(0, "QUEUED"),)])
    made, (only,), _ = run(service, 1)
    made.to_the_end()
    assert "GPULab says FAILED" in only.failure, "its own end, not that of its submission"
    assert service.submitted == ["job-0"]
    assert written(tmp_path) == [("0", False)]


def test_one_that_may_exist_is_told_and_looked_for_again_at_the_end(run, tmp_path):
    service = Service([LATE])
    made, (only,), _ = run(service, 1)
    with pytest.raises(Unanswered, match="job job-0 may exist all the same") as caught:
        made.to_the_end()
    assert "repeat" not in caught.value.hint
    assert "gpubed down gl cancels it" in caught.value.hint
    assert written(tmp_path) == [("", True)]
    service.listed = [(job(0, "QUEUED"),)]
    made.cancel_all()
    assert service.cancelled == [only.id]
    assert written(tmp_path) == [("0", False)]


def test_of_several_the_others_go_on_and_one_that_came_meanwhile_counts(run, tmp_path):
    service = Service([job(0, "QUEUED").uuid, LATE, job(2, "QUEUED").uuid])
    made, jobs, said = run(service, 3)
    looked = service.job

    def look(id_):
        if service.submitted[-1] == "job-2":
            service.listed = [(job(1, "RUNNING"),)]
        return looked(id_)

    service.job = look
    made.to_the_end()
    assert any("job-1 may exist all the same" in line and "gpubed down" in line for line in said)
    assert ["GPULab says FAILED" in one.failure for one in jobs] == [True] * 3
    assert service.submitted == ["job-0", "job-1", "job-2"]
    assert written(tmp_path) == [("0", False), ("1", False), ("2", False)]


def test_one_that_never_comes_is_a_failure_that_says_so(run, tmp_path):
    made, jobs, _ = run(Service([job(0, "QUEUED").uuid, LATE]), 2)
    made.to_the_end()
    assert "job-1 may exist all the same" in jobs[1].failure
    assert "gpubed down gl cancels it" in jobs[1].failure
    assert written(tmp_path) == [("0", False), ("", True)]


def test_one_that_was_refused_is_looked_for_no_more(run, tmp_path):
    made, jobs, _ = run(Service([job(0, "QUEUED").uuid, Refused("quota")]), 2)
    made.to_the_end()
    assert jobs[1].failure == "quota"
    assert written(tmp_path) == [("0", False), ("", False)]


class Listing(Service):
    """A page of jobs of the account, and one that is older."""

    def __init__(self, listed, older):
        super().__init__(listed=[listed])
        self.older, self.asked = {one.uuid: one for one in older}, []

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


def test_a_job_that_is_no_longer_listed_is_asked_for_by_its_id(cluster, monkeypatch):
    service = Listing([*PAGEFUL[1:], job(2, "RUNNING")], [job(1, "RUNNING"), job(3, "FINISHED")])
    rows = (row(1), row(2, open=True), row(3, open=True), row(4, open=False), row(5, open=True))
    bound = cluster(service, *rows)
    told = []
    monkeypatch.setattr(progress, "emit", lambda _, message: told.append(message))
    assert [thing.name for thing in bound.existing()] == ["job-2", "job-1"]
    assert service.asked == ["01", "03", "05"], "not what is listed, nor what has ended"
    assert [one.name for one in bound.jobs(UUID)] == ["job-2", "job-1", "job-3"]
    assert len(told) == 1
    assert f"lists {PAGE} of your jobs, but maybe not all" in told[0]


def test_one_whose_id_nobody_knows_may_be_beyond_the_page(cluster):
    lost = {"name": "job-1", "id": "", "open": True}
    bound = cluster(Listing(PAGEFUL, []), lost, {"name": "job-2", "id": "", "open": False})
    with pytest.raises(GpubedError, match="whether job job-1 exists is not known") as caught:
        bound.existing()
    assert "then: rm " in caught.value.hint


def test_where_all_are_listed_one_without_an_id_is_nowhere(cluster):
    bound = cluster(Listing(PAGEFUL[1:], []), {"name": "job-1", "id": "", "open": True})
    assert bound.existing() == []


def test_records_of_former_versions_say_nothing_of_ends(cluster):
    service = Listing(PAGEFUL, [])
    bound = cluster(service, row(1), {"name": "job-2", "id": ""})
    assert bound.existing() == []
    assert service.asked == ["01"]
