"""What there is of a local cluster, where Docker does not answer everything; it is a STAND-IN."""

from types import SimpleNamespace

from docker.errors import APIError

from gpubed.backends.local import census, daemon


def test_a_volume_whose_size_docker_is_counting_for_another_has_none(monkeypatch):
    def busy():
        raise APIError("500 Server Error", explanation="a disk usage operation is already running")

    volume = SimpleNamespace(name="lab-shared", id="lab-shared", attrs={"Labels": {}})
    nothing = SimpleNamespace(list=lambda **_: [])
    client = SimpleNamespace(
        containers=nothing,
        networks=nothing,
        volumes=SimpleNamespace(list=lambda **_: [volume]),
        df=busy,
    )
    monkeypatch.setattr(daemon, "client", lambda: client)
    [found] = census.existing("lab")
    assert (found.name, found.data, found.size) == ("lab-shared", True, None)
