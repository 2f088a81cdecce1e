"""Two nodes after roles nfs and shared_storage: node-0 serves, node-1 mounts."""

import pytest


@pytest.fixture
def is_server(host):
    return host.check_output("hostname") == "node-0"


def options(host, path):
    return host.check_output(f"findmnt --noheadings --output FSTYPE,OPTIONS --mountpoint {path}")


def test_the_client_mounts_version_4_2_hard_over_several_connections(host, is_server):
    if is_server:
        pytest.skip("this node serves")
    mounted = options(host, "/shared")
    assert mounted.startswith("nfs4")
    found = dict(option.partition("=")[::2] for option in mounted.split()[1].split(","))
    assert (found["vers"], found["nconnect"]) == ("4.2", "8")
    assert {"hard", "nosuid"} <= set(found)
    # 1 MiB is asked for; a server with less than 4 GiB of memory grants less.
    assert 1 << 17 <= int(found["rsize"]) <= 1 << 20


def test_datasets_are_read_only_and_cached_for_long(host, is_server):
    if is_server:
        pytest.skip("this node serves")
    assert {"ro", "nocto", "acregmax=600"} <= set(options(host, "/datasets").split()[1].split(","))
    assert host.run("touch /datasets/x").rc != 0


def test_reading_is_ahead_by_15_mib(host, is_server):
    if is_server:
        pytest.skip("this node serves")
    bdi = host.check_output("mountpoint --fs-devno /datasets")
    assert host.file(f"/sys/class/bdi/{bdi}/read_ahead_kb").content_string.strip() == "15360"


def test_root_of_a_worker_is_nobody(host, is_server):
    if is_server:
        pytest.skip("this node serves")
    assert host.run("chown root /shared/runs").rc != 0


def test_exports_name_the_other_nodes_only(host, is_server):
    if not is_server:
        pytest.skip("this node mounts")
    clients = host.check_output("exportfs -s").split()
    assert "*" not in "".join(clients).split("(", maxsplit=1)[0]
    assert len([word for word in clients if "(" in word]) == 1


def test_nothing_of_nfs_3_runs(host):
    assert not host.service("rpcbind.socket").is_running
