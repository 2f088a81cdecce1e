"""Host keys are checked on every way to a node, before a run and in the middle of one.

Somebody in a node's place has an SSH server with a key of his own. He may let in
whoever comes: what is asked of each way is that nobody logs in to him.
"""

import json
import subprocess
import time

import pytest

from e2e.conftest import bare_cluster
from gpubed.access import tunnel
from gpubed.configuration import inventory
from gpubed.core.paths import Project
from gpubed.jobs.launcher import on_head
from gpubed.nodes.allocation import Hop
from gpubed.nodes.ssh import SSH, HostKeyMismatch
from gpubed.testbeds.specification import load_cluster
from support.cluster import BIN
from support.impostor import SWAP, Granted
from support.known import mark

pytestmark = [pytest.mark.e2e, pytest.mark.docker]

STRATEGIES = ["gpubed_linear", "linear"]
# What a user's own shell may say; ansible-runner says it in any case.
CARELESS = {"ANSIBLE_HOST_KEY_CHECKING": "False"}


@pytest.fixture(scope="module")
def swapped(docker, tmp_path_factory):
    """Two nodes, both with another key than the one with which they came up."""
    with bare_cluster(tmp_path_factory.mktemp("project")) as cluster:
        cluster.call("up")
        granted = Granted(cluster)
        granted.swap("node-0", "node-1")
        yield granted


@pytest.fixture(autouse=True)
def nobody_logs_in(request):
    """Whatever a test does with swapped nodes, no login may succeed."""
    if "swapped" not in request.fixturenames:
        yield
        return
    granted = request.getfixturevalue("swapped")
    before = granted.logins()
    yield
    assert granted.logins() == before


def refused_by_openssh(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 255, done
    assert "Host key verification failed" in done.stderr
    return done.stderr


@pytest.mark.parametrize("careless", [{}, CARELESS], ids=["", "told not to check"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_configure(swapped, monkeypatch, strategy, careless):
    monkeypatch.setenv("GPUBED_ANSIBLE_STRATEGY", strategy)
    for name, value in careless.items():
        monkeypatch.setenv(name, value)
    done = swapped.cluster.call("configure", "--limit", "node-1", rc=1)
    swapped.says_whose(done.stderr)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("careless", [{}, CARELESS], ids=["", "told not to check"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_playbook_by_hand(swapped, strategy, careless):
    settings = {"ANSIBLE_STRATEGY": strategy, **careless}
    said = swapped.cluster.playbook("--limit", "node-1", rc=4, **settings)
    assert "unreachable=1" in said
    assert "host key" in said.lower()


@pytest.mark.parametrize("place", ["node-1", "address"])
def test_openssh(swapped, place):
    node = swapped.allocation.nodes[1]
    there = node.control_address if place == "address" else place
    said = refused_by_openssh(["ssh", "-F", str(swapped.paths.ssh_config), there, "true"])
    assert swapped.seen["node-1"] in said


def test_shell(swapped):
    """OpenSSH proposes to remove the key that is known; the last word is gpubed's."""
    command = [str(BIN / "gpubed"), "ssh", swapped.cluster.name, "node-1", "--", "true"]
    done = subprocess.run(
        command, env=swapped.cluster.environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 255
    assert "Host key verification failed" in done.stderr
    last = " ".join(done.stderr.partition("error: node-1")[2].split())
    assert "presents the host key SHA256:" in last
    assert "docs/how-to/host-keys.md" in last


def test_copies_by_openssh(swapped, tmp_path):
    for program in (["scp"], ["sftp", "-b", "/dev/null"]):
        command = [*program, "-F", str(swapped.paths.ssh_config), "node-1:/etc/hostname"]
        done = subprocess.run(
            [*command, *([str(tmp_path)] if program == ["scp"] else [])],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 255
        assert "Host key verification failed" in done.stderr


def test_tunnel(swapped):
    refused_by_openssh(tunnel.command(load_cluster(swapped.paths), 45671, 8888))


def test_launcher(swapped):
    refused_by_openssh(on_head(load_cluster(swapped.paths), "true"))


@pytest.mark.parametrize("verb", [("verify",), ("run", "digits")], ids=lambda words: words[0])
def test_what_gpubed_does_itself(swapped, verb):
    # A `configure` that was refused before leaves a cluster that has to be gone on with.
    mark(swapped.paths, unfinished="")
    swapped.cluster.edit(lambda spec: spec.update(configure=True))
    try:
        done = swapped.cluster.call(*verb, rc=1)
    finally:
        swapped.cluster.edit(lambda spec: spec.update(configure=False))
    swapped.says_whose(done.stderr, "node-0")


def test_health_names_the_keys_of_every_node(swapped):
    nodes = swapped.cluster.json("health", rc=1)["nodes"]
    assert {node["name"]: node["state"] for node in nodes} == dict.fromkeys(
        swapped.owns, "unreachable"
    )
    for node in nodes:
        assert swapped.owns[node["name"]] in node["problems"][0]
        assert swapped.seen[node["name"]] in node["problems"][0]


def test_up_configures_nobody(swapped):
    """Nor does an `up` with nothing to change take such a node for a ready one."""
    swapped.cluster.edit(lambda spec: spec.update(configure=True))
    try:
        swapped.says_whose(swapped.cluster.call("up", rc=1).stderr, "node-0")
        nodes = swapped.cluster.json("status", rc=1)["nodes"]
        states = {node["name"]: node["state"] for node in nodes}
        assert states == dict.fromkeys(swapped.owns, "unrecognized")
    finally:
        swapped.cluster.edit(lambda spec: spec.update(configure=False))


def test_files(swapped, tmp_path):
    for node in swapped.allocation.nodes:
        with SSH(node, swapped.paths) as ssh, pytest.raises(HostKeyMismatch):
            ssh.write("/tmp/secret", "s")
        with SSH(node, swapped.paths) as ssh, pytest.raises(HostKeyMismatch):
            ssh.get("/etc/hostname", tmp_path / "hostname")


def test_a_host_on_the_way(swapped, tmp_path):
    """The head stands for a bastion that somebody else answers for."""
    head, worker = swapped.allocation.nodes
    hop = Hop(address=head.control_address, user=head.user, host_keys=head.host_keys)
    behind = worker.model_copy(update={"via": (hop,)})
    with SSH(behind, swapped.paths) as ssh, pytest.raises(HostKeyMismatch) as caught:
        ssh.run("true")
    assert head.control_address in str(caught.value)
    assert swapped.seen["node-0"] in str(caught.value)

    granted = swapped.allocation.model_copy(update={"nodes": (head, behind)})
    there = Project(tmp_path).cluster(swapped.cluster.name)
    there.secrets.mkdir(parents=True)
    there.private_key.write_bytes(swapped.paths.private_key.read_bytes())
    there.private_key.chmod(0o600)
    there.known_hosts.write_text(inventory.known_hosts(granted))
    there.ssh_config.write_text(inventory.ssh_config(granted, there))
    said = refused_by_openssh(["ssh", "-F", str(there.ssh_config), "node-1", "true"])
    assert swapped.seen["node-0"] in said


SWAP_DURING = """
- hosts: node-1
  gather_facts: false
  tasks:
    - name: Log in
      ansible.builtin.command: hostname
      changed_when: false
    - name: Somebody takes the node's place
      ansible.builtin.command: {argv: [docker, exec, "{{ gpubed_node_id }}", sh, -c, "{{ swap }}"]}
      delegate_to: localhost
      connection: local
      changed_when: true
    - name: Lose the connection
      ansible.builtin.meta: reset_connection
    - name: Log in again
      ansible.builtin.command: touch /tmp/logged-in-again
      changed_when: true
"""


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_playbook_under_way(bare, tmp_path, strategy):
    bare.call("up")
    book = tmp_path / "swap.yml"
    book.write_text(SWAP_DURING)
    swap = ["--extra-vars", json.dumps({"swap": SWAP})]
    said = bare.playbook(*swap, path=book, rc=4, ANSIBLE_STRATEGY=strategy, **CARELESS)
    assert "TASK [Log in again]" in said
    assert "unreachable=1" in said
    assert "host key" in said.lower()
    assert Granted(bare).inside("node-1", "ls /tmp/logged-in-again || true") == ""


def test_a_configuration_under_way(bare):
    """`gpubed configure` itself, in the middle of the first role."""
    bare.call("up")
    granted = Granted(bare)
    words = ("configure", bare.name, "--limit", "node-1")
    with bare.start(*words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as running:
        # Ansible's own login: others come before it, and leave.
        while running.poll() is None and not granted.inside(
            "node-1", "pgrep -f [m]itogen: || true"
        ):
            time.sleep(0.1)
        granted.swap("node-1")
        granted.inside("node-1", "pkill -f '[s]shd: gpubed'")
        then = granted.logins()
        said = running.communicate(timeout=300)[1]
    assert running.returncode == 1
    granted.says_whose(said)
    assert granted.logins() == then


def test_a_connection_under_way(bare):
    """An open connection is still the node's own; the next one is looked at again."""
    bare.call("up")
    granted = Granted(bare)
    with SSH(granted.allocation.nodes[1], granted.paths) as ssh:
        ssh.run("true")
        granted.swap("node-1")
        ssh.run("true")
        granted.inside("node-1", "pkill -f '[s]shd: gpubed'")
        with pytest.raises(HostKeyMismatch):
            ssh.run("true")


@pytest.fixture
def mesh(bare, tmp_path):
    bare.call("up")
    book = tmp_path / "mesh.yml"
    book.write_text("- {hosts: all, become: true, roles: [ssh_mesh]}\n")
    bare.playbook(path=book)
    return Granted(bare)


def test_nodes_among_themselves(mesh):
    there = mesh.allocation.nodes[1].control_address
    login = f"ssh -o BatchMode=yes {there}"
    assert mesh.cluster.node("node-0", f"{login} hostname") == "node-1\n"
    refused = mesh.cluster.node("node-0", f"{login} -W 127.0.0.1:22 2>&1 || true")
    assert "administratively prohibited" in refused, "the mesh's keys forward nothing"

    mesh.swap("node-1")
    said = mesh.cluster.node("node-0", f"{login} hostname 2>&1; echo $?")
    assert "Host key verification failed" in said
    assert said.endswith("255\n")
    assert mesh.seen["node-1"] in said


def test_nodes_among_themselves_under_way(mesh):
    """A script on the head that goes to a worker again and again."""
    there = mesh.allocation.nodes[1].control_address
    login = f"ssh -o BatchMode=yes {there} hostname 2>&1; echo $?"
    wait = "touch /tmp/once; until [ -e /tmp/swapped ]; do sleep 0.2; done"
    words = ("ssh", mesh.cluster.name, "node-0", "--", f"{login}; {wait}; {login}")
    with mesh.cluster.start(*words, stdout=subprocess.PIPE) as running:
        while not mesh.inside("node-0", "ls /tmp/once || true"):
            time.sleep(0.1)
        before = mesh.logins("node-1")
        mesh.swap("node-1")
        mesh.inside("node-0", "touch /tmp/swapped")
        said = running.communicate(timeout=60)[0]
    assert said.startswith("node-1\n0\n")
    assert "Host key verification failed" in said
    assert said.endswith("255\n")
    assert mesh.logins() == before


def test_private_keys_stay_where_they_were_made(mesh):
    """The mesh's on their nodes, the operator's on the controller."""
    own = mesh.inside("node-0", "cat /home/gpubed/.ssh/id_gpubed").splitlines()[2]
    operators = mesh.paths.private_key.read_text().splitlines()[2]

    def holders(name, text):
        return mesh.inside(
            name, f"grep -rlsF --exclude-dir=cache -e {text} /etc /home /root /var || true"
        )

    assert holders("node-0", own) == "/home/gpubed/.ssh/id_gpubed"
    assert holders("node-1", own) == holders("node-0", operators) == ""
    files = [path for path in mesh.cluster.root.rglob("*") if path.is_file()]
    assert [path for path in files if own.encode() in path.read_bytes()] == []


def test_a_key_of_the_mesh_is_worth_nothing_elsewhere(mesh, tmp_path):
    stolen = tmp_path / "stolen"
    stolen.write_text(mesh.inside("node-0", "cat /home/gpubed/.ssh/id_gpubed") + "\n")
    stolen.chmod(0o600)
    # The way is the same but for the key: this machine is no address of the cluster.
    options = ["-o", "IdentityFile=none", "-o", "BatchMode=yes", "-i", str(stolen)]
    config = tmp_path / "ssh_config"
    config.write_text(
        "".join(
            line
            for line in mesh.paths.ssh_config.read_text().splitlines(keepends=True)
            if "IdentityFile" not in line
        )
    )
    command = ["ssh", "-F", str(config), *options, "node-1", "true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 255
    assert "Permission denied (publickey)" in done.stderr


def test_a_node_that_really_has_a_new_key_is_taken_back(bare):
    """The hint, followed: Docker is asked for the key, not the network."""
    bare.call("up")
    granted = Granted(bare)
    granted.swap("node-1")
    bare.call("up", "--refresh")
    assert bare.node("node-1", "hostname") == "node-1\n"
    bare.call("up")
