"""node-0 after upgrade and rollback, node-1 after its driver was removed; both on stand-ins."""

import pytest

VERSIONED = [
    "nvidia-driver-cuda",
    "libnvidia-ml1",
    "nvidia-kernel-open-dkms",
    "nvidia-fabricmanager-580",
]


@pytest.fixture
def driven(host):
    if host.check_output("hostname") != "node-0":
        pytest.skip("node-0 has the driver")
    return host


@pytest.fixture
def bare(host):
    if host.check_output("hostname") != "node-1":
        pytest.skip("the driver of node-1 was removed")
    return host


@pytest.mark.parametrize("package", VERSIONED)
def test_everything_has_the_version_that_it_was_rolled_back_to(driven, package):
    assert driven.package(package).version == "580.65.06-1"


def test_the_open_module_serves_hopper(driven):
    assert not driven.package("nvidia-kernel-dkms").is_installed


def test_the_module_of_that_version_is_loaded(driven):
    assert driven.file("/srv/node/sys/module/nvidia/version").content_string == "580.65.06\n"


@pytest.mark.parametrize("package", ["nvidia-driver-cuda", "nvidia-fabricmanager-580"])
def test_packages_are_held(driven, package):
    assert package in driven.check_output("apt-mark showhold").split()


def test_an_ordinary_upgrade_leaves_the_driver_alone(driven):
    said = driven.check_output("apt-get --simulate --quiet dist-upgrade")
    assert "nvidia" not in said


def test_apt_reads_the_exception_for_unattended_upgrades(driven):
    said = driven.check_output("apt-config dump Unattended-Upgrade::Package-Blacklist")
    assert '"libnvidia"' in said


@pytest.mark.parametrize("unit", ["nvidia-persistenced", "nvidia-fabricmanager"])
def test_service_runs_and_starts_at_boot(driven, unit):
    assert driven.service(unit).is_running
    assert driven.service(unit).is_enabled


def test_gpus_stay_initialised(driven):
    command = driven.check_output("systemctl show --property=ExecStart nvidia-persistenced")
    assert "--user nvpd" in command
    assert "--no-persistence-mode" not in command


def test_nouveau_is_kept_off(driven):
    assert "blacklist nouveau" in driven.file("/etc/modprobe.d/gpubed-nouveau.conf").content_string
