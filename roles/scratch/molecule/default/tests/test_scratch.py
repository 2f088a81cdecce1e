"""Two nodes after role scratch; containers have no disks of their own, so it is a folder."""

import json


def test_the_user_can_write(host):
    assert host.run("runuser -u gpubed -- touch /scratch/datasets/.written").rc == 0


def test_the_record_lets_it_be_removed(host):
    record = json.loads(host.file("/var/lib/gpubed/owned/scratch").content_string)
    assert (record["path"], record["disks"], record["made"]) == ("/scratch", [], True)


def test_no_disk_was_touched(host):
    assert host.run("grep gpubed /etc/fstab").rc == 1
