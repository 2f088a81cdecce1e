"""Two nodes after role scratch; containers have no disks of their own, so it is a folder."""


def test_the_user_can_write(host):
    assert host.run("runuser -u gpubed -- touch /scratch/datasets/.written").rc == 0


def test_it_carries_the_mark_that_lets_it_be_removed(host):
    assert "gpubed" in host.file("/scratch/.gpubed").content_string


def test_no_disk_was_touched(host):
    assert host.run("grep gpubed /etc/fstab").rc == 1
