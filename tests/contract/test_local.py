"""What nodes as containers promise beyond the contract of all backends."""

from __future__ import annotations

import dataclasses
import os
import platform
import threading
import time
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import docker
import pytest

from gpubed.backends.local.container import SystemContainer
from gpubed.backends.local.environment import NODE_BUNDLE
from gpubed.backends.local.runtime import MADE, NODE_CACHE, get
from gpubed.core.errors import GpubedError
from gpubed.nodes.allocation import Node
from gpubed.nodes.ssh import SSH
from support.escapes import ESCAPES, Escape

pytestmark = [
    pytest.mark.quick,
    pytest.mark.docker,
    pytest.mark.parametrize("cluster", ["container"], indirect=True, scope="module"),
]

_PORT = 5999
_SERVER = """
import socket, time
connection, _ = socket.create_server(("", {port})).accept()
total, start = len(connection.recv(1 << 18)), time.monotonic()
while chunk := connection.recv(1 << 18):
    total += len(chunk)
print(8 * total / (time.monotonic() - start))
"""
_CLIENT = """
import socket, time
for _ in range(50):
    try:
        connection = socket.create_connection(("{address}", {port}))
        break
    except ConnectionRefusedError:
        time.sleep(0.1)
end = time.monotonic() + {seconds}
while time.monotonic() < end:
    connection.sendall(bytes(1 << 16))
"""


@pytest.fixture
def head(cluster: Any) -> Iterator[SSH]:
    with SSH(cluster.allocation, cluster.paths) as ssh:
        yield ssh


@pytest.fixture
def daemon() -> docker.DockerClient:
    return docker.from_env()


def measure(cluster: Any, source: Node, target: Node, address: str, seconds: float) -> float:
    """Return the goodput of one TCP stream in bit/s."""
    measured: list[float] = []

    def serve() -> None:
        with SSH(target, cluster.paths) as ssh:
            measured.append(float(ssh.run("python3 -c %s", _SERVER.format(port=_PORT)).stdout))

    server = threading.Thread(target=serve)
    server.start()
    client = _CLIENT.format(address=address, port=_PORT, seconds=seconds)
    with SSH(source, cluster.paths) as ssh:
        ssh.run("python3 -c %s", client)
    server.join()
    return measured[0]


def interface(ssh: SSH, subnet: str) -> str:
    return ssh.run("ip -oneline -4 address show to %s", subnet).stdout.split()[1]


def test_node_boots_like_a_machine(head: SSH) -> None:
    assert head.run("systemctl is-system-running").stdout.strip() == "running"


def test_ssh_takes_keys_only_and_no_root(head: SSH) -> None:
    settings = head.run("sudo sshd -T").stdout.splitlines()
    assert "passwordauthentication no" in settings
    assert "permitrootlogin no" in settings
    assert "kbdinteractiveauthentication no" in settings


def test_node_owns_its_etc_and_resolves_names(head: SSH, cluster: Any) -> None:
    head.run("echo 192.0.2.1 elsewhere | sudo tee --append /etc/hosts")
    assert "node-0" in head.run("cat /etc/hosts").stdout
    name = cluster.node("node-1").inputs["control"]["network"].replace("-control", "-node-1")
    assert cluster.allocation.nodes[1].control_address in head.run("getent hosts %s", name).stdout


def test_limits_are_the_specifications(cluster: Any, daemon: docker.DockerClient) -> None:
    host = daemon.containers.get(cluster.allocation.head.id).attrs["HostConfig"]
    assert (host["Memory"], host["CpuQuota"] / host["CpuPeriod"]) == (2**30, 1.0)


@pytest.mark.parametrize(("source", "target"), [(0, 1), (1, 0)])
def test_experiment_link_has_the_declared_rate(cluster: Any, source: int, target: int) -> None:
    nodes, rate = cluster.allocation.nodes, cluster.allocation.experiment.rate_bps
    address = nodes[target].experiment_address
    measured = measure(cluster, nodes[source], nodes[target], address, seconds=3)
    # 94 % of the rate is payload; a busy machine loses a little more.
    assert 0.85 * rate < measured < rate


def test_arriving_traffic_is_shaped_too(cluster: Any, head: SSH) -> None:
    """The inbound side alone keeps the rate when the sender does not keep its own."""
    sender = cluster.allocation.nodes[1]
    device = interface(head, cluster.allocation.experiment.subnet)
    with SSH(sender, cluster.paths) as ssh:
        ssh.run("sudo tc qdisc delete dev %s root", device)
        address = cluster.allocation.head.experiment_address
        measured = measure(cluster, sender, cluster.allocation.head, address, seconds=3)
        ssh.run("sudo systemctl restart gpubed-link.service")
    assert 0.75 * cluster.allocation.experiment.rate_bps < measured
    assert measured < cluster.allocation.experiment.rate_bps


# What docs/concepts/security.md says of containers that are not confined. None: where the
# kernel has keys, they can be pressed.
WAYS = {
    "release agent": "open",
    "core pattern": "open",
    "the host's disk": "open",
    "the kernel's modules and keys": None,
    "Docker's socket and the first process": "closed",
}
each_way = pytest.mark.parametrize("escape", ESCAPES, ids=lambda escape: escape.name)
# By bits: SYS_MODULE, SYS_RAWIO, SYS_PTRACE, SYS_ADMIN, SYS_BOOT, SYS_TIME, MKNOD, and more.
FORBIDDEN = {2: "DAC_READ_SEARCH", 16: "SYS_MODULE", 17: "SYS_RAWIO", 19: "SYS_PTRACE"} | {
    20: "SYS_PACCT",
    21: "SYS_ADMIN",
    22: "SYS_BOOT",
    24: "SYS_RESOURCE",
    25: "SYS_TIME",
    27: "MKNOD",
    30: "AUDIT_CONTROL",
    34: "SYSLOG",
    35: "WAKE_ALARM",
    38: "PERFMON",
    39: "BPF",
}
# Calls that Docker's profile of seccomp refuses, with a word of what they would do.
CALLS = """
import ctypes, errno
call = ctypes.CDLL(None, use_errno=True).syscall
NUMBERS = {"keyctl": 250, "add_key": 248, "bpf": 321, "userfaultfd": 323, "kexec_load": 246,
    "init_module": 175, "finit_module": 313, "delete_module": 176, "open_by_handle_at": 304,
    "perf_event_open": 298, "swapon": 167, "reboot": 169, "settimeofday": 164, "acct": 163,
    "setns": 308, "unshare": 272}
for name, number in NUMBERS.items():
    # Zeros name nothing that could be done, but for unshare: a user namespace.
    if call(number, 0x10000000 if name == "unshare" else 0, 0, 0, 0, 0) != -1:
        print(name, "is let through")
    elif ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS):
        print(name, errno.errorcode[ctypes.get_errno()])
"""


@each_way
def test_no_way_leads_out_of_a_confined_node(head: SSH, escape: Escape, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of the host")
    own = tmp_path.stat().st_dev
    disk = f"{os.major(own)} {os.minor(own)}"
    knocked = head.run("sudo sh -c %s", escape.script(escape.knock, tmp_path, disk), check=False)
    assert knocked.stdout.strip() == "closed", knocked.stderr
    # It fails at its first step; where that succeeded, the line above has failed.
    played = head.run("sudo sh -c %s", escape.script(escape.play, tmp_path, disk), check=False)
    assert "of the host" not in played.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_a_confined_node_may_less_than_an_ordinary_container(head: SSH) -> None:
    status = head.run("sudo cat /proc/self/status").stdout
    words = dict(line.split(":", 1) for line in status.splitlines())
    bounds = int(words["CapBnd"], 16)
    assert [name for bit, name in FORBIDDEN.items() if bounds >> bit & 1] == []
    assert words["Seccomp"].strip() == "2"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of calls are of x86_64")
def test_calls_that_a_node_does_without_are_refused(head: SSH) -> None:
    assert head.run("sudo python3 -c %s", CALLS).stdout == ""


def test_a_confined_node_writes_to_no_other_part_of_the_cgroup_tree(head: SSH) -> None:
    """Else its root could stop, starve or free other containers, the machine's services too."""
    script = """
own=$(sed -n 's/^\\(0:\\|[0-9]*:name=systemd\\):*//p' /proc/1/cgroup | cut -d/ -f2 | sort -u)
find /sys/fs/cgroup -name cgroup.procs -writable | grep --invert-match "/$own/"
find /proc/sys /sys -xdev -path /sys/fs/cgroup -prune -o -type f -writable -print | head -5
"""
    found = head.run("sudo sh -c %s", script, check=False).stdout
    assert found == ""


@pytest.mark.long
def test_who_comes_while_the_last_session_ends_is_let_in_at_once(cluster: Any) -> None:
    """systemd ends a user's services ten seconds after the last logout, and has to see it."""
    with SSH(cluster.allocation, cluster.paths) as ssh:
        ssh.run("true")
    for _ in range(3):
        time.sleep(11)
        with SSH(cluster.allocation, cluster.paths) as ssh:
            states = ssh.run("systemctl list-units --all --plain --no-legend", timeout=10).stdout
        assert "abandoned" not in states
        assert "final-sigkill" not in states


def test_control_network_is_not_shaped(cluster: Any, head: SSH) -> None:
    device = interface(head, cluster.allocation.control.subnet)
    assert "htb" not in head.run("sudo tc qdisc show dev %s", device).stdout


def test_link_and_limits_change_without_a_restart(cluster: Any, head: SSH) -> None:
    made = cluster.node("node-0")
    started = head.run("stat --format=%%Y %s", "/proc/1").stdout
    link = {**made.inputs["link"], "rate_bps": 50_000_000, "mtu": 1300}
    news = {**made.inputs, "link": link, "cpus": 2, "memory": None}
    driver = cluster.testbed.driver("node")
    assert set(driver.diff(made.result, made.inputs, news).update) == {"link", "cpus", "memory"}
    assert driver.update(made.id, made.inputs, news) == made.result
    device = interface(head, cluster.allocation.experiment.subnet)
    assert "rate 50Mbit" in head.run("sudo tc class show dev %s", device).stdout
    assert "mtu 1300" in head.run("ip link show %s", device).stdout
    assert head.run("stat --format=%%Y %s", "/proc/1").stdout == started
    driver.update(made.id, news, made.inputs)


def test_a_node_that_was_made_without_a_ca_bundle_gets_it(
    cluster: Any, daemon: docker.DockerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = cluster.node("node-0")
    bundle = tmp_path / "corp.pem"
    bundle.write_text("-- of the proxy --")
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    driver, olds = cluster.testbed.driver("node"), {**made.inputs}
    olds.pop("certificates", None)
    news = {**olds, "certificates": "1"}
    assert driver.diff(made.result, olds, news).update == ["certificates"]
    assert not driver.diff(made.result, news, olds).update, "another shell takes none away"
    bare = daemon.containers.create(made.inputs["image"], labels={"gpubed.test": "certificates"})
    try:
        SystemContainer().trust(bare)
        assert get(bare, f"/{NODE_BUNDLE}") == bundle.read_bytes()
    finally:
        bare.remove(force=True)


def test_stopped_node_is_started_and_shaped_again(
    cluster: Any, daemon: docker.DockerClient
) -> None:
    made = cluster.node("node-0")
    with SSH(cluster.allocation, cluster.paths) as ssh:
        ssh.run("echo 192.0.2.2 written | sudo tee --append /etc/hosts")
        ssh.run("until sudo grep written /var/lib/gpubed/hosts; do sleep 0.2; done", timeout=30)
    daemon.containers.get(made.id).stop()
    assert cluster.testbed.describe(cluster.allocation)["node-0"] == "stopped"
    found = cluster.read(made)
    assert found == {**made.result, "faults": ["exited"]}
    driver = cluster.testbed.driver("node")
    assert driver.diff(found, made.inputs, made.inputs).update
    before = (made.id, made.result)
    cluster.create(made)
    assert (made.id, made.result) == before
    with SSH(cluster.allocation, cluster.paths) as ssh:
        device = interface(ssh, cluster.allocation.experiment.subnet)
        assert "rate 100Mbit" in ssh.run("sudo tc class show dev %s", device).stdout
        assert "192.0.2.2" in ssh.run("getent hosts written").stdout


def test_leftover_of_other_inputs_is_replaced(cluster: Any, daemon: docker.DockerClient) -> None:
    made = cluster.node("node-1")
    other = dataclasses.replace(made, inputs={**made.inputs, "shared": None})
    unmade(daemon.containers.get(made.id))
    cluster.create(other)
    assert other.id != made.id
    unmade(daemon.containers.get(other.id))
    cluster.create(made)
    assert made.id != other.id


def unmade(container: Any) -> None:
    """Let a node be what a killed run leaves: it was never handed over."""
    assert container.exec_run(["rm", MADE]).exit_code == 0


def test_leftover_that_was_in_use_is_kept(cluster: Any, daemon: docker.DockerClient) -> None:
    """The state was lost: nobody has been asked for what is on the node's own disk."""
    made = cluster.node("node-1")
    daemon.containers.get(made.id).stop(timeout=1)
    driver = cluster.testbed.driver("node")
    with pytest.raises(GpubedError, match="node-1 exists, in use") as caught:
        driver.create({**made.inputs, "shared": None})
    assert caught.value.hint.endswith("gpubed audit contract --remove")
    network = next(m for m in cluster.made if (m.kind, m.name) == ("network", "control"))
    other = {**network.inputs, "subnet": "10.127.204.0/24"}
    with pytest.raises(GpubedError, match="its nodes are in use"):
        cluster.testbed.driver("network").create(other)
    before = made.id
    cluster.create(made)
    assert made.id == before


def test_a_network_that_was_made_anew_is_another(cluster: Any) -> None:
    """A state that was put back has the former one's id: kept, nothing could remove the cluster."""
    made = next(m for m in cluster.made if (m.kind, m.name) == ("network", "control"))
    driver = cluster.testbed.driver("network")
    assert driver.read(made.id, made.inputs) is not None
    assert driver.read("0" * 64, made.inputs) is None


def test_a_node_in_use_gets_back_networks_that_were_made_anew(
    cluster: Any, daemon: docker.DockerClient
) -> None:
    """Its state is lost, and `docker network prune` took those that no node was running on."""
    nodes = [cluster.node("node-0"), cluster.node("node-1")]
    networks = [made for made in cluster.made if made.kind == "network"]
    before = {made.name: made.id for made in nodes}
    for made in nodes:
        daemon.containers.get(made.id).stop(timeout=1)
    for made in networks:
        daemon.networks.get(made.id).remove()
    for made in [*networks, *nodes]:
        cluster.create(made)
    assert {made.name: made.id for made in nodes} == before
    assert [cluster.read(made) for made in nodes] == [made.result for made in nodes]


def test_a_node_of_another_versions_image_stays(cluster: Any, daemon: docker.DockerClient) -> None:
    made = cluster.node("node-1")
    driver, its_own = cluster.testbed.driver("node"), made.inputs["image"]
    later = f"{its_own.rpartition('-')[0]}-0123456789ab"
    change = driver.diff(made.result, made.inputs, {**made.inputs, "image": later})
    assert (list(change.replace), list(change.update)) == ([], [])
    assert driver.create({**made.inputs, "image": later})[0] == made.id, "it is adopted as it is"
    other = {**made.inputs, "image": its_own.replace("debian-12", "debian-13")}
    assert list(driver.diff(made.result, made.inputs, other).replace) == ["image"]


def test_accounts_of_a_node_get_to_nothing_that_clusters_share(cluster: Any, head: SSH) -> None:
    """Root of another cluster's node may have left a set-uid program there."""
    script = f"""
trap 'rm -f {NODE_CACHE}/escape-test; userdel jupyter' EXIT
useradd --no-create-home jupyter
cp /usr/bin/id {NODE_CACHE}/escape-test
chmod 4755 {NODE_CACHE}/escape-test
runuser -u gpubed -- sh -c "{NODE_CACHE}/escape-test -u"
runuser -u jupyter -- sh -c "{NODE_CACHE}/escape-test -u"
"""
    tried = head.run("sudo sh -c %s", script, check=False)
    assert tried.stdout == "0\n", "such a program works for the user, who may become root anyway"
    assert "Permission denied" in tried.stderr


@pytest.mark.parametrize("kind", ["node", "network", "volume"])
def test_what_is_not_ours_is_refused_and_kept(
    cluster: Any, daemon: docker.DockerClient, kind: str
) -> None:
    made = next(m for m in cluster.made if m.kind == kind)
    foreign = {**made.inputs, "uuid": f"{cluster.uuid[:8]}-somebody-else"}
    with pytest.raises(GpubedError, match=rf"gpubed-contract-{cluster.uuid[:8]}-"):
        cluster.testbed.driver(kind).create(foreign)
    cluster.testbed.driver(kind).delete("", foreign)
    assert cluster.read(made) is not None


@pytest.mark.parametrize(
    ("name", "words"),
    [("another", "used by Docker network gpubed-contract-"), ("contract", "gpubed audit contract")],
)
def test_overlapping_subnet_says_whose_it_is_and_what_to_do(
    cluster: Any, name: str, words: str
) -> None:
    made = next(m for m in cluster.made if (m.kind, m.name) == ("network", "control"))
    inputs = {**made.inputs, "cluster": name, "uuid": "0ther000-uuid"}
    with pytest.raises(GpubedError, match=words) as caught:
        cluster.testbed.driver("network").create(inputs)
    assert "networks.control.subnet" in (caught.value.hint or "")


def test_node_that_cannot_start_says_why_and_is_removed(cluster: Any) -> None:
    made = cluster.node("node-1")
    taken = str(next(ip_network(cluster.allocation.control.subnet).hosts()))  # this machine's
    control = {**made.inputs["control"], "address": taken}
    inputs = {**made.inputs, "name": "node-9", "control": control}
    before = cluster.existing()
    with pytest.raises(GpubedError, match=r"node-9 does not start: .*in use"):
        cluster.testbed.driver("node").create(inputs)
    assert cluster.existing() == before


def test_node_that_was_killed_before_it_had_all_its_networks_is_made_anew(cluster: Any) -> None:
    made = cluster.node("node-1")
    experiment = next(m for m in cluster.made if (m.kind, m.name) == ("network", "experiment"))
    unmade(docker.from_env().containers.get(made.id))
    docker.from_env().networks.get(experiment.id).disconnect(made.id, force=True)
    before = made.id
    cluster.create(made)
    assert made.id != before
    assert cluster.testbed.describe(cluster.allocation)["node-0"] == "ready"


def test_a_node_of_an_earlier_version_stays_as_it_is(cluster: Any) -> None:
    made = cluster.node("node-1")
    driver = cluster.testbed.driver("node")
    assert made.inputs["confined"]
    assert made.result["confined"]
    former = {key: value for key, value in made.inputs.items() if key != "confined"}
    assert list(driver.diff(made.result, made.inputs, former).replace) == ["confined"]
    wide = dataclasses.replace(made, inputs=former)
    unmade(docker.from_env().containers.get(made.id))
    cluster.create(wide)
    assert wide.id != made.id, "a confined container does not serve a node that needs more"
    try:
        assert "confined" not in wide.result
        change = driver.diff(wide.result, former, made.inputs)
        assert (list(change.replace), list(change.update)) == ([], [])
        found = driver.read(wide.id, made.inputs)
        assert found == wide.result
        assert driver.create(made.inputs) == (wide.id, wide.result), "it is adopted as it is"
        (warning,) = cluster.testbed.backend.warnings(cluster.plan.spec)
        assert "root on node-1 can become root of this machine" in warning
        assert "made anew" in warning
    finally:
        cluster.delete(made)
        cluster.create(made)


@pytest.fixture(scope="module")
def wide(cluster: Any) -> Iterator[Node]:
    """A node that is not confined, as one that runs Docker is."""
    made = cluster.node("node-1")
    former = {key: value for key, value in made.inputs.items() if key != "confined"}
    other = dataclasses.replace(made, inputs=former)
    cluster.delete(made)
    cluster.create(other)
    keys = tuple(other.result["host_keys"])
    yield cluster.allocation.nodes[1].model_copy(update={"host_keys": keys})
    cluster.delete(made)
    cluster.create(made)


@each_way
def test_ways_out_that_are_open_to_root_are_those_that_are_told(
    wide: Node, cluster: Any, escape: Escape, tmp_path: Path
) -> None:
    if escape.name == "release agent" and not Path("/sys/fs/cgroup/devices").is_dir():
        pytest.skip("this machine has no cgroup v1, told for that alone")
    (tmp_path / "secret").write_text("of the host")
    keys = Path("/proc/sysrq-trigger").exists()
    wanted = WAYS[escape.name] or ("open" if keys else "closed")
    script = escape.script(escape.knock, tmp_path, "0 0")
    with SSH(wide, cluster.paths) as ssh:
        done = ssh.run("sudo sh -c %s", script, check=False)
    assert done.stdout.strip() == wanted, done.stderr
