"""Some faults of docs/how-to/chaos.md: each hint, followed, leads to a whole cluster."""

import pytest

from support.faults.play import Play
from support.faults.ways import FAULTS

pytestmark = [pytest.mark.e2e, pytest.mark.docker]
QUICK = ("sshd", "renamed")


@pytest.mark.parametrize("fault", [f for f in FAULTS if f.name in QUICK], ids=lambda f: f.name)
def test_what_is_broken_is_put_right_and_nothing_is_lost(bare, fault):
    played = Play(bare).play(fault)
    assert played.right, played.row
    assert played.status.returncode == 1
    assert len(played.steps) == 1, "the first `up` repairs it"
