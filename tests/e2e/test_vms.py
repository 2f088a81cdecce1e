"""Kernel NFS and RDMA between two virtual machines: what containers have no kernel for."""

import re
import subprocess
import time

import pytest

from support.cluster import BIN, ROOT, Cluster, unique

pytestmark = [pytest.mark.vms, pytest.mark.e2e, pytest.mark.docker]

PAGE = (ROOT / "docs/how-to/rehearse-nfs-and-rdma.md").read_text()
SPEC, OURS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
ROLES = re.search(r"gpubed configure \S+ --tags (\S+)", PAGE)[1]
RATE_MBIT = 50
BIG_MIB = 64
# Reads in order and no faster than 20 MiB/s; says after each MiB that it is there.
READ = """
import hashlib, sys, time
digest = hashlib.sha256()
with open(sys.argv[1], "rb") as file:
    while part := file.read(1 << 20):
        digest.update(part)
        print("read", flush=True)
        time.sleep(0.05)
print(digest.hexdigest())
"""


@pytest.fixture(scope="module")
def machines(docker, tmp_path_factory):
    """The machines of the page, with the roles that it names; node-0 serves, node-1 mounts."""
    made = Cluster(tmp_path_factory.mktemp("project"), unique("vms"))
    made.spec_path.write_text(SPEC)
    variables = made.spec_path.parent / "group_vars" / "all" / "ours.yml"
    variables.parent.mkdir(parents=True)
    variables.write_text(OURS)
    try:
        made.call("up")
        made.call("configure", "--tags", ROLES)
        yield made
    finally:
        subprocess.run(
            [str(BIN / "gpubed"), "down", made.name, "-y"], env=made.environment, check=False
        )


def rdma_checks(cluster):
    cluster.spec_path.write_text(SPEC.replace("configure: false\n", ""))
    try:
        # The rest of `verify` looks for software that these nodes were not given.
        found = cluster.json("verify", rc=1)["verification"]["checks"]
    finally:
        cluster.spec_path.write_text(SPEC)
    return [check for check in found if check["id"].startswith("rdma.")]


def mount_options(cluster, path):
    ask = f"findmnt --noheadings --output FSTYPE,OPTIONS --mountpoint {path}"
    kind, options = cluster.node("node-1", ask).split()
    return kind, set(options.split(","))


def test_roles_change_nothing_the_second_time(machines):
    again = machines.json("configure", "--tags", ROLES)
    assert again["changed"] == {"node-0": 0, "node-1": 0}


def test_folder_is_mounted_with_nfs_4_2(machines):
    kind, options = mount_options(machines, "/shared")
    assert kind == "nfs4"
    # A server with less than 4 GiB of memory grants less than 1 MiB at a time.
    size = machines.node("node-0", "sudo cat /proc/fs/nfsd/max_block_size").strip()
    assert {"vers=4.2", "hard", "nconnect=8", f"rsize={size}", f"wsize={size}"} <= options
    server = machines.json("status")["nodes"][0]["experiment_address"]
    assert f"addr={server}" in options
    connections = f"ss --no-header --tcp state established dst {server} dport = 2049 | wc -l"
    assert 1 < int(machines.node("node-1", connections)) <= 8


def test_server_speaks_nothing_older_and_needs_nothing_of_it(machines):
    assert machines.node("node-0", "sudo cat /proc/fs/nfsd/versions").split() == [
        *("-3", "+4", "-4.0", "+4.1", "+4.2")
    ]
    machines.node("node-0", "sudo systemctl restart nfs-server")
    for name in ("node-0", "node-1"):
        assert machines.node(name, "systemctl --failed --no-legend") == ""
        assert "inactive" in machines.node(name, "systemctl is-active rpcbind.socket || true")


def test_root_of_a_worker_is_nobody_on_the_server(machines):
    keep = "sudo install --mode=600 /dev/stdin /shared/runs/roots"
    machines.node("node-0", keep, text="secret\n")
    show = "sudo cat /shared/runs/roots 2>&1 || true"
    assert machines.node("node-0", show) == "secret\n"
    assert "Permission denied" in machines.node("node-1", show)


def test_datasets_are_read_only_on_workers(machines):
    assert "ro" in mount_options(machines, "/datasets")[1]
    assert "Read-only" in machines.node("node-1", "sudo touch /datasets/x 2>&1 || true")


def test_a_read_survives_a_restart_of_the_server(machines):
    make = f"head --bytes={BIG_MIB}M /dev/urandom > /shared/datasets/big"
    wanted = machines.node("node-0", f"{make} && sha256sum /shared/datasets/big").split()[0]
    machines.node("node-1", "sudo sysctl --quiet --write vm.drop_caches=3")
    before = started(machines)
    with reading(machines, "/shared/datasets/big") as reader:
        for _ in range(BIG_MIB // 4):
            assert reader.stdout.readline() == "read\n"
        machines.node("node-0", "sudo systemctl restart nfs-server")
        # What was read ahead (15 MiB) is less than what is left.
        rest = reader.stdout.read().split()
    assert reader.returncode == 0
    assert started(machines) != before
    assert rest.count("read") == BIG_MIB - BIG_MIB // 4
    assert rest[-1] == wanted


def test_verify_climbs_the_ladder_of_rdma(machines):
    found = rdma_checks(machines)
    assert {(check["id"], check["result"]) for check in found} == {
        (f"rdma.{step}", "pass")
        for step in ("device", "rping", "write_bw", "counters", "collective")
    }, found
    by_id = {check["id"]: check for check in found}
    assert by_id["rdma.device"]["value"] == "rxe0"
    # No more than the link carries: it is the link that was measured.
    assert 0.2 * RATE_MBIT <= by_id["rdma.write_bw"]["value"] < RATE_MBIT
    assert by_id["rdma.collective"]["value"] > 4 << 20


def test_verify_fails_when_mpi_takes_tcp(machines):
    change = (
        "sudo sed --in-place=.kept -e s/^UCX_TLS=.*/UCX_TLS=tcp,sm,self/"
        " -e s/^UCX_NET_DEVICES=.*/UCX_NET_DEVICES=eth1/ /etc/ucx/ucx.conf"
    )
    for name in ("node-0", "node-1"):
        machines.node(name, change)
    try:
        found = rdma_checks(machines)
    finally:
        for name in ("node-0", "node-1"):
            machines.node(name, "sudo mv /etc/ucx/ucx.conf.kept /etc/ucx/ucx.conf")
    failed = [check for check in found if check["result"] != "pass"]
    assert [(check["id"], check["node"], check["result"]) for check in failed] == [
        ("rdma.collective", "node-0", "fail"),
        ("rdma.collective", "node-1", "fail"),
    ]
    assert all("did not go over RDMA" in check["reason"] for check in failed)


def test_all_is_as_it_was_after_a_reboot(machines):
    boot = "cat /proc/sys/kernel/random/boot_id"
    before = machines.node("node-1", boot)
    machines.node("node-1", "sudo systemctl reboot || true")
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        time.sleep(5)
        try:
            if machines.node("node-1", boot) != before:
                break
        except AssertionError:
            continue
    assert machines.node("node-1", boot) != before
    machines.node("node-1", "systemctl is-system-running --wait || true")
    assert mount_options(machines, "/shared")[0] == "nfs4"
    assert mount_options(machines, "/datasets")[0] == "nfs4"
    assert machines.node("node-1", "/usr/local/sbin/gpubed-rdma device") == "rxe0\n"


def started(cluster):
    ask = "systemctl show --property=ActiveEnterTimestampMonotonic nfs-server"
    return cluster.node("node-0", ask)


def reading(cluster, path):
    """Read a file on node-1, line by line as it goes."""
    config = str(cluster.state / "ssh_config")
    remote = f"python3 - {path}"
    reader = subprocess.Popen(
        ["ssh", "-F", config, "node-1", remote],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    reader.stdin.write(READ)
    reader.stdin.close()
    return reader
