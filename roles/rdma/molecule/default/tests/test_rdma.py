"""A device is active, marks its packets, comes back after a restart, and MPI is told of it."""

PROGRAM = "/usr/local/sbin/gpubed-rdma"


def test_device_is_active_on_the_experiment_network(host):
    assert host.run(f"{PROGRAM} device").stdout.strip() == "rxe0"


def test_device_comes_back(host):
    assert host.run("systemctl restart gpubed-rdma").rc == 0
    assert host.run(f"{PROGRAM} device").stdout.strip() == "rxe0"
    assert host.service("gpubed-rdma").is_enabled


def test_packets_are_marked(host):
    tos = host.file("/sys/kernel/config/rdma_cm/rxe0/ports/1/default_roce_tos")
    assert tos.content_string.strip() == "106"


def test_mpi_has_no_tcp_to_fall_back_to(host):
    settings = host.file("/etc/ucx/ucx.conf").content_string
    assert "UCX_NET_DEVICES=rxe0:1" in settings
    assert "tcp" not in settings.split("UCX_TLS=")[1].splitlines()[0]


def test_firewall_lets_roce_in_from_neighbours_only(host):
    rules = host.run("nft list table inet gpubed").stdout
    assert "ip6 saddr fe80::/10 meta l4proto udp ct original proto-dst 4791 accept" in rules


def test_without_an_adapter_and_without_soft_roce_it_says_so(host):
    """The negative case, on the node itself: the program fails with a sentence."""
    host.run("systemctl stop gpubed-rdma")
    host.run("sed --in-place s/SOFTWARE=1/SOFTWARE=0/ /etc/gpubed/rdma")
    failed = host.run(f"{PROGRAM} start")
    host.run("sed --in-place s/SOFTWARE=0/SOFTWARE=1/ /etc/gpubed/rdma")
    host.run("systemctl start gpubed-rdma")
    assert failed.rc == 1
    assert "no RDMA adapter" in failed.stderr
