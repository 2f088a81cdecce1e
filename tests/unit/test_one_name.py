"""What is written in several places, since programs on nodes stand alone, says the same there."""

from dataclasses import asdict

import pytest

from gpubed.hardware import nvidia_driver
from support import role_variables


@pytest.mark.parametrize("release", sorted(role_variables.RELEASES))
def test_a_release_is_called_alike(release):
    names = {
        role: str(role_variables.value(role, f"__{role}_release", release)).strip()
        for role in ("base", "cuda", "nvidia_driver")
    }
    distribution = role_variables.facts(release)["distribution"]
    assert names["cuda"] == names["nvidia_driver"] == f"{distribution} {names['base']}"


@pytest.mark.parametrize("release", sorted(role_variables.RELEASES))
def test_check_knows_the_driver_branches_that_the_role_chooses_from(release):
    offers = nvidia_driver.offers(release)
    known = {source: [asdict(offer) for offer in there] for source, there in offers.items()}
    assert any(known.values())
    assert known == role_variables.value("nvidia_driver", "__nvidia_driver_offers", release)
    assert [*known] == role_variables.value("nvidia_driver", "nvidia_driver_sources", release)
