"""A node after role base."""

import pytest


def test_host_name_is_the_inventory_name(host):
    assert host.check_output("hostname") in {"node-0", "node-1"}


@pytest.mark.parametrize("node", ["node-0", "node-1"])
def test_name_means_the_experiment_address(host, node):
    name = host.check_output(f"getent ahostsv4 {node} | head -n 1").split()[0]
    control = host.check_output(f"getent ahostsv4 {node}.control | head -n 1").split()[0]
    assert name != control


@pytest.mark.parametrize("node", ["node-0", "node-1", "node-0.control", "node-1.control"])
def test_every_name_answers(host, node):
    assert host.run(f"ping -c 1 -W 5 {node}").rc == 0


def test_localhost_is_still_known(host):
    assert host.check_output("getent ahostsv4 localhost | head -n 1").split()[0] == "127.0.0.1"


def test_limits_are_raised_where_that_is_allowed(host):
    allowed = host.run("prlimit --memlock=unlimited:unlimited true").rc == 0
    assert host.file("/etc/security/limits.d/90-gpubed.conf").exists == allowed


def test_login_sessions_still_open(host):
    assert host.run("su - gpubed -c true").rc == 0


def test_settings_folder_is_readable(host):
    assert host.file("/etc/gpubed").mode == 0o755


def test_user_may_look_into_the_package_caches(host):
    assert host.run("runuser -u gpubed -- test -x /var/cache/gpubed/shared").rc == 0


def test_downloaded_packages_are_shared(host):
    assert host.run("ls /var/cache/gpubed/shared/apt/*.deb").rc == 0


def test_container_leaves_its_clock_to_the_host(host):
    in_container = host.run("systemd-detect-virt --container --quiet").rc == 0
    assert host.package("chrony").is_installed != in_container
