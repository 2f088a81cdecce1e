"""What there is of a local cluster, where Docker does not answer everything; it is a STAND-IN."""

from types import SimpleNamespace

import pytest

from gpubed.backends.local import census, daemon, ownership, runtime


@pytest.mark.parametrize(("in_use", "address"), [(True, "10.1.2.10"), (False, "")])
def test_a_node_in_use_has_an_address_that_no_other_gets(monkeypatch, in_use, address):
    owner = ownership.Owner("lab", "6f0c0000-0000-4000-8000-000000000000")
    labels = {**owner.labels("d"), ownership.NODE: "node-0"}
    network = {owner.name("control"): {"IPAMConfig": {"IPv4Address": "10.1.2.10"}}}
    attrs = {"Config": {"Labels": labels}, "NetworkSettings": {"Networks": network}}
    container = SimpleNamespace(name="c", id="c", attrs=attrs)
    nothing = SimpleNamespace(list=lambda **_: [])
    listed = SimpleNamespace(list=lambda **_: [container])
    client = SimpleNamespace(containers=listed, networks=nothing, volumes=nothing)
    for way in ("client", "look"):
        monkeypatch.setattr(daemon, way, lambda: client)
    monkeypatch.setattr(runtime, "is_in_use", lambda _: in_use)
    [found] = census.existing("lab")
    assert (found.node, found.address) == ("node-0", address)
