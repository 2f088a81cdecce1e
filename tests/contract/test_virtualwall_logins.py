"""Who one is at a GENI site, and whom one tells."""

from __future__ import annotations

import pytest
import yaml

from gpubed.backends.virtualwall import login
from gpubed.core.errors import GpubedError, PrerequisiteMissing
from gpubed.nodes.allocation import Allocation
from gpubed.testbeds.specification import load
from support.am import faults, pki
from support.wall import NAME, Wall, document
from support.wall_site import GARBLED, KNOWN


def test_a_plan_without_a_login_says_how_to_get_one(server, wall):
    """That it does not fit now would be no help, and nobody knows."""
    wall.block["login"] = str(wall.paths.state / "none.pem")
    with pytest.raises(PrerequisiteMissing) as missing:
        wall.testbed.fits(wall.plan)
    assert "backend.login" in missing.value.hint


@pytest.mark.parametrize(
    ("options", "said"),
    [({"days": -1}, "expired on"), ({"foreign": True}, "does not accept the login certificate")],
)
def test_a_login_that_will_not_do_is_refused_before_anything_is_made(
    server, tmp_path, driver, monkeypatch, options, said
):
    monkeypatch.setenv("GPUBED_ROOT", "")
    wall = Wall(tmp_path / "project", server, server.user("mallory", **options))
    with pytest.raises(PrerequisiteMissing, match=said):
        driver.create(wall.inputs)
    assert server.slivers() == []
    findings = wall.testbed.doctor(load(wall.paths.spec))
    assert [f for f in findings if not f.ok and said in f.message]


def test_a_server_that_no_bundle_vouches_for_is_never_told_anything(server, wall, driver):
    server.bundle.write_text(pki.root("elsewhere.example").pem)
    with pytest.raises(PrerequisiteMissing, match="cannot be trusted"):
        driver.create(wall.inputs)
    assert server.calls == []
    with pytest.raises(PrerequisiteMissing, match="cannot be trusted"):
        wall.testbed.fits(wall.plan)


def test_a_login_that_was_renewed_is_the_bastions_from_the_next_look_on(server, wall, driver):
    """Nothing of the cluster has changed by then, so nothing of it is made anew."""
    wall.block["bastion"] = {"host": "127.0.0.1", "host_keys": ["ssh-ed25519 AAAA"]}
    wall.user = server.user("alice", passphrase=None)
    wall.block = {**wall.block, "login": str(wall.user.pem)}
    wall.block.pop("passphrase_file")
    wall.paths.spec.write_text(yaml.safe_dump(document(wall.block, **wall.changes)))
    driver.create(wall.inputs)
    server.user("alice", passphrase=None)
    head = {"name": "node-0", "group": "node", "role": "head", **KNOWN}
    granted = {"cluster": NAME, "uuid": wall.uuid, "backend": "virtualwall", "nodes": [head]}
    control = {"subnet": "192.0.2.0/24"}
    testbed = wall.testbed
    testbed.describe(Allocation.model_validate(granted | {"control": control}))
    copy = (wall.paths.secrets / "virtualwall-login").read_bytes()
    assert copy == login.load(wall.plan.spec.backend).private_pem


@pytest.mark.parametrize("status", [401, 403])
def test_a_server_that_turns_the_login_away_says_what_to_get(server, wall, driver, status):
    server.faults.on("geni-sa/lookup", faults.http(status))
    with pytest.raises(PrerequisiteMissing, match=str(status)) as caught:
        driver.create(wall.inputs)
    assert "new login certificate" in caught.value.hint


@pytest.mark.parametrize("garbled", [*GARBLED, faults.reset])
def test_what_is_no_answer_says_what_to_do(server, wall, driver, garbled):
    wall.block["patience"] = 1
    server.faults.on("geni-ma/get_credentials", garbled(), times=None)
    with pytest.raises(GpubedError) as caught:
        driver.create(wall.inputs)
    assert "try again" in caught.value.hint
