"""Whose container toolkit it is: the variables that role nvidia_container_toolkit decides by."""

import pytest

from support import role_variables


@pytest.mark.parametrize(
    ("told", "ours", "kept"),
    [
        ("installed 1.21.0-1", False, True),
        ("installed 1.18.0-1", False, True),
        ("installed 1.17.8-1", False, False),
        ("config-files 1.21.0-1", False, False),
        ("", False, False),
        ("installed 1.20.0-1", True, False),
    ],
)
def test_an_owners_toolkit_stays_if_it_serves(told, ours, kept):
    found = role_variables.value(
        "nvidia_container_toolkit",
        "__nvidia_container_toolkit_kept",
        "debian-12",
        __nvidia_container_toolkit_dpkg={"stdout": told},
        __nvidia_container_toolkit_note={"stat": {"exists": ours}},
    )
    assert bool(found) is kept
