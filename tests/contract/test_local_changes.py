"""Changes of a running cluster of containers: planned first, then done, by every engine.

The tests use one cluster per engine, in this order.
"""

import pytest

from support import changes, local_changes
from support.local_changes import CHANGES, neighbour

pytestmark = [pytest.mark.testbeds, pytest.mark.docker]
__all__ = ["neighbour"]
DONE, REFUSED = changes.done("local, container")


@pytest.fixture(scope="module", params=changes.ENGINES)
def local(request, tmp_path_factory):
    with local_changes.running("container", request.param, tmp_path_factory.mktemp("c")) as made:
        yield made


def test_every_change_of_the_matrix_can_be_made():
    assert not {*DONE, *REFUSED} - CHANGES.keys()


@pytest.mark.parametrize("change", DONE)
def test_a_change_is_planned_and_done_as_planned(local, change):
    local.make(change)


@pytest.mark.parametrize("change", REFUSED)
@pytest.mark.usefixtures("neighbour")
def test_a_change_that_cannot_be_is_refused_before_anything_goes(local, change):
    local.refuse(change)
