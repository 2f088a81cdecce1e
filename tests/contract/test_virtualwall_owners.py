"""Slices of others, and names that others have."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest

from gpubed.backends.virtualwall import rspec
from gpubed.backends.virtualwall.documents import slice_name
from gpubed.backends.virtualwall.slice_inputs import description
from gpubed.core import progress
from gpubed.core.errors import Refused
from support.am import PROJECT, request
from support.wall import NAME
from support.wall_site import up


def a_colleagues(server, name, text=""):
    """Register a slice for another user; returns it."""
    bob, expires = server.user("bob", passphrase=None), server.clock.now() + timedelta(hours=9)
    return server.accounts.register(bob.urn, name, PROJECT, expires, text)


def a_colleagues_slice(server, wall, cluster=NAME):
    """Make a slice of the cluster's name for another user; returns it."""
    labels = description(cluster, str(uuid.uuid4())) if cluster else ""
    made = a_colleagues(server, slice_name(NAME, wall.uuid), labels)
    wanted = request.read(rspec.without(wall.inputs["request"], ["node-1", "node-2"]))
    server.ledger.allocate(made.urn, wanted, made.expires)
    return made


@pytest.mark.parametrize("cluster", [NAME, "another", ""])
def test_a_slice_of_another_user_is_refused_and_keeps_its_nodes(server, wall, driver, cluster):
    """Also where it carries no labels of ours: then nobody can tell whose its nodes are."""
    a_colleagues_slice(server, wall, cluster).members.append(wall.user.urn)
    with pytest.raises(Refused, match=r"belongs to another cluster|whose they are"):
        driver.create(wall.inputs)
    testbed = wall.testbed
    for thing in testbed.existing():
        assert thing.uuid != wall.uuid
    driver.delete("", wall.inputs)
    assert [sliver.client_id for sliver in server.slivers()] == ["node-0"]


def test_a_colleagues_cluster_that_is_closed_to_us_is_said_and_passed_over(
    server, wall, driver, tmp_path, monkeypatch
):
    """The reference software lists it and refuses its credential, Emulab tells its name alone."""
    id_ = up(wall, driver)
    theirs = str(uuid.uuid4())
    a_colleagues(server, slice_name(NAME, theirs), description(NAME, theirs))
    a_colleagues(server, "something-else")
    monkeypatch.setenv(progress.VARIABLE, str(tmp_path / "events"))
    for _ in range(3):  # as `down` looks
        assert [thing.id for thing in wall.testbed.existing()] == [id_]
    said = (tmp_path / "events").read_text()
    passed_over = f"slice {slice_name(NAME, theirs)} of another user is passed over"
    assert said.count(passed_over) == 1
    assert "something-else" not in said
    findings = wall.testbed.doctor(wall.plan.spec)
    assert [finding for finding in findings if not finding.ok] == []


def test_a_closed_slice_of_our_name_is_neither_used_nor_given_back(server, wall, driver):
    """Whoever made it, with another login: only that login can say that its nodes are gone."""
    made = a_colleagues_slice(server, wall)
    with pytest.raises(Refused, match=r"belongs to another user|belongs to another cluster"):
        driver.create(wall.inputs)
    driver.delete("", wall.inputs)
    if not server.site.is_gcf:
        with pytest.raises(Refused, match="No privilege"):
            driver.delete(made.urn, wall.inputs)
    assert [sliver.client_id for sliver in server.slivers()] == ["node-0"]


def test_a_slice_is_called_as_its_authority_says(server, wall, driver):
    """Whatever sub-authorities our name has, and wherever the project's name goes."""
    id_ = up(wall, driver)
    assert [id_] == list(server.accounts.slices)
    wall.paths.state.joinpath("slice.json").unlink()
    assert driver.read(id_, wall.inputs)["slice"] == id_
    assert driver.create(wall.inputs)[0] == id_
    driver.delete(id_, wall.inputs)
    assert server.slivers() == []


def test_a_name_that_is_taken_is_no_fault_of_the_project(server, wall, driver):
    server.user("carol", passphrase=None, projects=("other",))
    server.accounts.register(server.site.user("carol"), slice_name(NAME, wall.uuid), "other")
    with pytest.raises(Refused, match="already") as refused:
        driver.create(wall.inputs)
    assert "project" not in refused.value.hint


def test_another_project_is_refused_before_anything_goes(server, wall, driver):
    up(wall, driver)
    wall.block["project"] = "other"
    [finding] = wall.testbed.refusals(wall.plan)
    assert "one of project testproj until it expires" in finding.message
    assert f"gpubed down {NAME}" in finding.fix
