"""What is written in several places, since programs on nodes stand alone, says the same there."""

import re
from dataclasses import asdict

import pytest

from gpubed.core.paths import assets
from gpubed.hardware import drivers
from support import by_path, role_variables

ROLES = assets() / "roles"


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
    offers = drivers.offers(release)
    known = {source: [asdict(offer) for offer in there] for source, there in offers.items()}
    assert any(known.values())
    assert known == role_variables.value("nvidia_driver", "__nvidia_driver_offers", release)
    assert [*known] == role_variables.value("nvidia_driver", "nvidia_driver_sources", release)


def test_the_kernel_module_has_the_names_that_packages_give_it(monkeypatch):
    monkeypatch.syspath_prepend(str(ROLES / "health/files"))
    from gpubed_health import gpus

    host = by_path.load(ROLES / "hardware/files/gpubed-gpu-host", "gpubed_gpu_host")
    branches = {
        re.search(r"\d+", row["dkms"])[0]
        for release in role_variables.RELEASES
        for row in role_variables.value("nvidia_driver", "__nvidia_driver_catalog", release)[
            "distribution"
        ]
        if row["dkms"].startswith("nvidia-tesla-")
    }
    loaded = {
        name
        for branch in branches
        for name in role_variables.value(
            "nvidia_driver",
            "__nvidia_driver_module_names",
            "debian-12",
            __nvidia_driver_wanted=f"{branch}.1",
        )
    }
    assert set(gpus.MODULE_NAMES) == set(host.MODULES) == loaded
