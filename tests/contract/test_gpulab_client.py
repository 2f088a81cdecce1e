"""The client against the test server, in one process: lengths, ends, silence."""

import pytest

from gpubed.backends.gpulab import client
from gpubed.core.errors import GpubedError
from gpubed.spec import clusterspec
from support.gpulab.server import Stumble
from support.gpulab.site import IMAGE, Site

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with Site(tmp_path_factory.mktemp("site")) as made:
        yield made


@pytest.fixture
def options(site):
    return clusterspec.model().model_validate({"name": "gl", **site.spec()}).backend


@pytest.fixture
def talking(options, monkeypatch):
    monkeypatch.setattr(client, "_BACKOFF_S", 0.001)
    return client.Client(options)


def job(command):
    return {
        "name": "by-hand",
        "description": "",
        "request": {
            "resources": {"cpus": 1, "gpus": 0, "cpuMemoryGb": 1},
            "docker": {"image": IMAGE, "command": ["sh", "-c", command]},
            "scheduling": {
                "interactive": False,
                "restartable": False,
                "maxDuration": "5 minutes",
            },
        },
        "owner": {"projectUrn": "urn:publicid:IDN+ilabt.imec.be+project+myproj"},
        "deploymentEnvironment": "production",
    }


def finished(talking, command):
    id_ = talking.submit(job(command))
    while not talking.job(id_).ended:
        pass
    return id_


def test_a_long_log_comes_in_parts(talking, monkeypatch):
    id_ = finished(talking, "seq 1 2000")
    monkeypatch.setattr(client, "_LONGEST_ANSWER", 1000)
    content = b""
    while part := talking.log(id_, len(content)):
        assert len(part) <= 1000
        content += part
    assert content.split() == [b"%d" % n for n in range(1, 2001)]


def test_an_answer_without_end_is_one_clear_error(talking, monkeypatch):
    monkeypatch.setattr(client, "_LONGEST_ANSWER", 100)
    with pytest.raises(GpubedError, match="clusters is too long: over 100 bytes"):
        talking.clusters()


def test_cancelling_what_has_ended_or_never_was_is_no_error(talking):
    talking.cancel(finished(talking, "true"))
    talking.cancel("00000000-0000-4000-8000-000000000000")


def test_a_job_that_nobody_knows_is_told_apart_from_silence(site, talking):
    with pytest.raises(client.NoSuchJob):
        talking.job("00000000-0000-4000-8000-000000000000")
    site.server.stumbles.append(Stumble("GET slaves", "504 gone", times=5))
    with pytest.raises(client.Unanswered, match="504") as caught:
        talking.workers()
    assert "repeat the command" in caught.value.hint


def test_a_submission_is_asked_once(site, talking):
    site.server.stumbles.append(Stumble("POST jobs", "500 oops"))
    before = len(site.server.requests)
    with pytest.raises(client.Unanswered, match="500"):
        talking.submit(job("true"))
    assert len(site.server.requests) == before + 1
