"""How long a slice is had: granted, renewed, refused, over."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gpubed.core.errors import Refused
from support.am import faults
from support.wall_site import granted, up

pytestmark = pytest.mark.quick


@pytest.fixture
def held(wall, driver):
    """A slice that is up: what asks and renews its end, and the end before."""
    id_, result = driver.create(wall.inputs)
    allocation = granted(wall, result)

    def renew(until):
        return wall.testbed.renew(allocation, until).granted_until

    def end():
        return wall.testbed.lease(allocation).granted_until

    return id_, renew, end, end()


def test_renewals_are_reported_as_granted(server, held):
    _, renew, end, before = held
    asked = before + timedelta(hours=5)
    assert renew(asked) == asked
    server.faults.on("Renew", faults.shortened(3600), nth=1, times=1)
    less = renew(asked + timedelta(hours=5))
    assert less < asked + timedelta(hours=5)
    assert less == end()


def test_a_lease_that_lasts_longer_is_never_shortened(held):
    _, renew, end, before = held
    assert renew(before - timedelta(hours=1)) == before
    assert end() == before


def test_a_renewed_lease_keeps_its_end_where_nodes_are_asked_for_anew(wall, driver, held):
    """As after another `count`: Emulab grants a slice as a whole."""
    id_, renew, end, before = held
    asked = renew(before + timedelta(hours=6))
    former = wall.inputs
    wall.changes["nodes"] = [{"name": "node", "count": 2}]
    driver.delete(id_, former)
    driver.create(wall.inputs)
    assert end() == asked


def test_a_refused_renewal_says_so_and_until_when_the_lease_is(server, held):
    _, renew, end, before = held
    server.faults.on("Renew", faults.refused("pre-reserved", code=7), nth=1, times=1)
    with pytest.raises(Refused, match=r"stays as it was.*pre-reserved") as caught:
        renew(before + timedelta(hours=5))
    assert "gpubed renew" in caught.value.hint
    assert end() == before


def test_an_expired_slice_is_gone_and_can_be_had_again(server, wall, driver):
    id_ = up(wall, driver)
    server.clock.advance(2 * 86400)
    assert driver.read(id_, wall.inputs) is None
    driver.delete(id_, wall.inputs)


def test_a_lease_longer_than_the_authority_gives_is_told_which_key_to_shorten(wall, driver):
    wall.changes["lease"] = {"duration": "100d"}
    with pytest.raises(Refused, match="maximum number of minutes") as refused:
        driver.create(wall.inputs)
    assert "lease.duration" in refused.value.hint
