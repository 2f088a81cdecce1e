"""Two nodes after role shared_storage."""

import pytest


def test_the_folder_is_a_mount_point(host):
    assert host.run("mountpoint --quiet /shared").rc == 0


def test_nobody_but_the_user_writes(host):
    assert (host.file("/shared").user, host.file("/shared").mode) == ("gpubed", 0o755)


@pytest.mark.parametrize("folder", ["datasets", "env", "runs", "wheels"])
def test_folders_belong_to_the_user(host, folder):
    assert host.file(f"/shared/{folder}").user == "gpubed"


@pytest.mark.parametrize("folder", ["reports", "runs"])
def test_another_account_sees_no_runs(host, folder):
    other = "setpriv --reuid 1234 --regid 1234 --clear-groups"
    assert host.run(f"{other} ls /shared/datasets").rc == 0
    assert host.run(f"{other} ls /shared/{folder}").rc != 0


def test_the_user_can_write(host):
    assert host.run("runuser -u gpubed -- touch /shared/runs/.written").rc == 0


def test_every_node_reads_the_same_token(host):
    assert len(host.file("/shared/.gpubed-token").content_string) == 32
