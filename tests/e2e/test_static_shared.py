"""Hosts that others use: behind two jumps, with a firewall, a Docker and services of their owner.

Two real hosts with systemd: sshd on port 2222, fish as login shell, ufw, Debian's Docker with a
`daemon.json`, a web server; the first also has a Slurm at work and an NFS server (Ganesha, as the
kernel of containers has none). They are used during the cluster's time, and as they were after
`down`.
"""

import json
import re
import subprocess
from collections import Counter

import pytest

from support import own, whole_host
from support.cluster import Cluster, unique

pytestmark = [pytest.mark.testbeds, pytest.mark.e2e, pytest.mark.docker]

HOSTS, GATES = ("node-0", "node-1"), ("gate-0", "gate-1")
CONTROL, SUBNET = "10.200.221.0/24", "10.200.222.0/24"
ADMITS = f"ufw allow from {SUBNET}"
PREPARED = """set -e
printf 'Port 2222\\n' > /etc/ssh/sshd_config.d/05-port.conf
systemctl restart ssh
apt-get -qq update
apt-get -qq install -y --no-install-recommends fish ufw docker.io > /dev/null
apt-get -qq purge -y jq > /dev/null
usermod --shell /usr/bin/fish gpubed
echo '{"bip": "172.30.0.1/16", "log-driver": "json-file"}' > /etc/docker/daemon.json
systemctl restart docker
cat > /etc/systemd/system/web.service << END
[Service]
ExecStart=/usr/bin/python3 -m http.server --directory /etc/ssl 8080
[Install]
WantedBy=multi-user.target
END
systemctl enable --now web.service
ufw allow proto tcp from GATE to any port 2222
ufw allow 8080/tcp
ufw --force enable
"""
# Of the first host's owner: a Slurm in which a job runs and the next one waits, and an export.
BUSY = """set -e
apt-get -qq install -y --no-install-recommends slurmctld slurmd munge nfs-ganesha-mem > /dev/null
cat > /etc/slurm/slurm.conf << END
ClusterName=mine
SlurmctldHost=node-0(127.0.0.1)
SlurmUser=slurm
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
NodeName=node-0 NodeAddr=127.0.0.1
PartitionName=main Nodes=ALL Default=YES
END
cat > /etc/ganesha/ganesha.conf << END
EXPORT { Export_Id = 1; Path = /mine; Pseudo = /mine; Access_Type = RO; FSAL { Name = MEM; } }
END
systemctl restart munge slurmctld slurmd nfs-ganesha
systemctl reset-failed
ufw allow 2049/tcp
for job in runs waits; do
  runuser -u nobody -- sbatch -J $job --chdir / --output /dev/null --wrap 'exec sleep infinity'
done
until squeue --noheader --states R | grep -q runs; do sleep 1; done
"""
ASK = "systemctl show --property=Id,MainPID munge slurmctld slurmd nfs-ganesha; " + (
    "squeue --noheader --format '%i %j %T'; pgrep -af '^sleep infinity'"
)


@pytest.fixture(scope="module")
def ground(docker, tmp_path_factory):
    made = Cluster(
        tmp_path_factory.mktemp("ground"),
        unique("ground"),
        nodes=[
            {"name": "node", "count": 2, "machine": {"cpus": 2, "memory": "3 GiB"}},
            {"name": "gate", "count": 2, "machine": {"cpus": 1, "memory": "512 MiB"}},
        ],
        networks={
            "control": {"subnet": CONTROL},
            "experiment": {"subnet": SUBNET, "rate": "100 Mbit/s"},
        },
        configure=False,
    )
    try:
        made.call("up")
        yield made
    finally:
        made.call("down", "-y")


@pytest.fixture(scope="module")
def nodes(ground):
    found = json.loads((ground.state / "allocation.json").read_text())["nodes"]
    return {node["name"]: node for node in found}


@pytest.fixture(scope="module")
def cluster(ground, nodes, tmp_path_factory):
    root = tmp_path_factory.mktemp("own")
    backend = own.backend(ground, root, "node")
    for name in HOSTS:
        gate = nodes[GATES[1]]["control_address"]
        on(nodes, name, "sh", "-es", text=PREPARED.replace("GATE", gate))
    on(nodes, HOSTS[0], "timeout", "180", "sh", "-es", text=BUSY)
    on(nodes, GATES[0], "sh", "-ec", "apt-get -qq update; apt-get -qq install -y libnfs-utils")
    for host in backend["hosts"]["node"]:
        host["port"] = 2222
    with (root / "known_hosts").open("a") as file:
        for node in nodes.values():
            file.writelines(f"[{node['control_address']}]:2222 {k}\n" for k in node["host_keys"])
    made = Cluster(
        root,
        unique("own"),
        backend=backend,
        nodes=[{"name": "node", "count": 2}],
        networks={"experiment": {"subnet": SUBNET, "rate": "100 Mbit/s"}},
        storage={"shared": {"provider": "volume"}},
        services={"docker": {}},
    )
    try:
        yield made
    finally:
        made.call("down", "-y")


def on(nodes, name, *words, text=None):
    """Run a program on a host as root, past its network."""
    command = ["docker", "exec", "-i", nodes[name]["id"], *words]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def states(nodes):
    found = {}
    for name in HOSTS:
        state = whole_host.state(lambda code, name=name: on(nodes, name, "python3", "-c", code))
        rules = on(nodes, name, "nft", "--stateless", "list", "ruleset").splitlines()
        # Docker, which was restarted, inserts its own anew: their order is another.
        found[name] = {**state, "rules": {f"{n} of {r}": "" for r, n in Counter(rules).items()}}
        files = state["files"].items()
        work = ("/var/lib/slurm/", "/var/lib/nfs/")
        found[name]["files"] = {path: is_ for path, is_ in files if not path.startswith(work)}
    found[HOSTS[0]]["owners"] = owners(nodes)
    return found


def owners(nodes):
    """Return which processes the owner's Slurm and NFS server are, and the queue."""
    found = dict.fromkeys(on(nodes, HOSTS[0], "sh", "-ec", ASK).splitlines(), "")
    assert {"1 runs RUNNING", "2 waits PENDING"} <= found.keys()
    return found


def is_served(nodes):
    """Ask each host's web server, and the first one's NFS server, from outside of the cluster."""
    ask = "from urllib.request import urlopen; urlopen('http://{}:8080/', timeout=5)"
    for name in HOSTS:
        on(nodes, GATES[0], "python3", "-c", ask.format(nodes[name]["control_address"]))
    on(nodes, GATES[0], "nfs-ls", f"nfs://{nodes[HOSTS[0]]['control_address']}/mine?version=4")


def test_a_firewall_that_keeps_nodes_apart_is_named_before_anything_changes(cluster, nodes):
    before = states(nodes)
    for verb in ("doctor", "plan", "up"):
        done = cluster.call(verb, rc=None)
        assert done.returncode, verb
        assert f"sudo {ADMITS}" in done.stdout + done.stderr, verb
    assert states(nodes) == before
    for name in HOSTS:
        on(nodes, name, *ADMITS.split())


def test_a_slurm_beside_the_owners_is_refused_before_anything_changes(cluster, nodes):
    before = states(nodes)
    cluster.edit(lambda spec: spec["services"].update(slurm={}))
    for verb in ("doctor", "plan", "up"):
        done = cluster.call(verb, rc=None)
        assert done.returncode, verb
        said = "node-0 has what gpubed did not set up and Slurm would overwrite or stop: /etc/slurm"
        assert said in done.stdout + done.stderr, verb
    assert states(nodes) == before
    cluster.edit(lambda spec: spec["services"].pop("slurm"))


def test_plan_tells_what_would_change_on_each_host(cluster, nodes):
    before = states(nodes)
    [*said] = cluster.json("plan")["warnings"]
    for name in HOSTS:
        [packages] = [line for line in said if line.startswith(f"{name} would get the packages")]
        assert "jq" in re.findall(r"[\w.+-]+", packages)
        assert "docker.io" not in packages
        assert (
            f"{name} has files that roles would edit: /etc/docker/daemon.json, /etc/hosts" in said
        )
        [units] = [line for line in said if line.startswith(f"{name} would run the units")]
        assert "gpubed-firewall.service" in units
        [ports] = [line for line in said if line.startswith(f"{name}: the firewall leaves open")]
        assert re.search(r"\btcp 2222, .*\btcp 8080\b", ports)
    assert not re.search("slurm|munge|ganesha", " ".join(said))
    assert states(nodes) == before


def test_hosts_are_used_by_both_and_are_as_they_were(cluster, nodes):
    is_served(nodes)
    before = states(nodes)
    done = cluster.call("up", "--json", rc=None)
    up = json.loads(done.stdout)
    assert not done.returncode, done.stderr
    assert up["state"] == "ready", up["verification"]
    assert up["verification"]["failed"] == 0
    is_served(nodes)
    assert owners(nodes) == before[HOSTS[0]]["owners"]
    for name in HOSTS:
        table = on(nodes, name, "nft", "list", "table", "inet", "gpubed")
        assert "hook forward" not in table, "Docker forwarded before gpubed came"
        assert "172.30.0.1" in on(nodes, name, "ip", "address", "show", "docker0")
        assert cluster.node(name, "echo $SHELL").strip() == "/usr/bin/fish"
    assert "nothing to change" in cluster.call("up").stderr
    assert cluster.json("run", "digits", "--set", "epochs=20")["world_size"] == 2
    cluster.call("down", "-y")
    is_served(nodes)
    after = states(nodes)
    for name in HOSTS:
        data = ["/var/lib/docker", "/var/lib/containerd"]
        assert whole_host.differences(before[name], after[name], data=data) == []
