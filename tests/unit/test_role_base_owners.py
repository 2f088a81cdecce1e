"""What of an owner's host role base leaves alone; programs of the host are STAND-INS."""

import pytest

from support.role_tasks import play

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("kept", "runs", "chrony"),
    [
        ("auto", "", True),
        ("auto", "ntpsec.service loaded active running Network Time Service", False),
    ],
)
def test_a_time_service_of_the_owners_stays(tmp_path, kept, runs, chrony):
    """To install chrony would remove it, and nothing would bring it back."""
    done = play(
        tmp_path,
        "base",
        "preflight",
        programs={"systemctl": f"echo '{runs}'"},
        tell=["__base_chrony", "__base_timekeeper"],
        facts={"virtualization_type": "kvm", "base_time_sync": kept},
        __base_problems=[],
    )
    assert done.code == 0, done.said
    assert done.told == {
        "__base_chrony": chrony,
        "__base_timekeeper": "ntpsec.service" if runs else "",
    }
