"""Own hosts whose sshd is set up as administrators do: none is locked out, and none is changed.

Hosts are bare nodes of a local cluster; roles run as `up` runs them.
"""

import json
import subprocess
from dataclasses import dataclass

import pytest

from support import own
from support.cluster import Cluster, unique

pytestmark = [pytest.mark.testbeds, pytest.mark.docker]

CONTROL, EXPERIMENT = "10.127.237.0/24", "10.127.238.0/24"
HOSTS = ("node-0", "node-1")
ROLES = ["base", "ssh_mesh", "firewall"]
# What the image has, less what would be an owner's by these tests.
BARE = """
rm -rf /etc/ssh/sshd_config.d/*
printf 'HostKey /etc/ssh/ssh_host_ed25519_key\\nUsePAM yes\\n' > /etc/ssh/base
"""
INCLUDE = "Include /etc/ssh/sshd_config.d/*.conf"
# As they are found on hosts: how the owner's sshd_config is written, by name of the way.
WAYS = {
    "Include behind a Match": f"""
cat /etc/ssh/base - > /etc/ssh/sshd_config << END
Match User nobody
  X11Forwarding no
{INCLUDE}
END
""",
    "AllowGroups, in a file that sorts before": f"""
cat - /etc/ssh/base > /etc/ssh/sshd_config << END
{INCLUDE}
END
cat > /etc/ssh/sshd_config.d/05-cis.conf << END
AllowGroups sshusers gpubed jupyter
MaxStartups 10:30:60
DisableForwarding yes
AuthorizedKeysFile .ssh/authorized_keys
END
""",
    "ports of ListenAddress, and a Match of them": f"""
cat /etc/ssh/base - > /etc/ssh/sshd_config << END
{INCLUDE}
ListenAddress 0.0.0.0:22
ListenAddress 0.0.0.0:2222
Match LocalPort 2222
  Banner none
END
""",
    "keys where only root writes": f"""
cat - /etc/ssh/base > /etc/ssh/sshd_config << END
{INCLUDE}
END
echo 'AuthorizedKeysFile /etc/ssh/keys/%u' > /etc/ssh/sshd_config.d/zz-owner.conf
install -d /etc/ssh/keys
install -m 644 ~gpubed/.ssh/authorized_keys /etc/ssh/keys/gpubed
""",
}
PAIRS = [tuple(WAYS)[:2], tuple(WAYS)[2:]]
# A user's own client settings: for hosts of another network.
CLIENT = "Host node-* 10.*\n  ProxyJump gone.invalid\n  User somebody\n"
# What a version before wrote on such hosts, where sshd may refuse it.
FORMER = """
printf 'PerSourceMaxStartups 500\\n' > /etc/ssh/sshd_config.d/10-gpubed.conf
printf 'MaxStartups 1000:30:2000\\n' > /etc/ssh/sshd_config.d/zz-gpubed.conf
printf 'Host node-0\\n  IdentityFile ~/.ssh/id_gpubed\\n' > /etc/ssh/ssh_config.d/10-gpubed.conf
printf '# BEGIN gpubed role ssh_mesh\\nnode-0 ssh-ed25519 AAAA\\n# END gpubed role ssh_mesh\\n' \
  >> /etc/ssh/ssh_known_hosts
"""
MESH = "runuser -u gpubed -- ssh -F /etc/gpubed/ssh_config -o BatchMode=yes {} hostname"


@dataclass
class Ground:
    """Two hosts that somebody else installed."""

    cluster: Cluster
    backend: dict

    def on(self, name, command, rc=0):
        """Run a command on a host as root, past its network and its sshd."""
        nodes = json.loads((self.cluster.state / "allocation.json").read_text())["nodes"]
        [id_] = [node["id"] for node in nodes if node["name"] == name]
        done = subprocess.run(
            ["docker", "exec", id_, "sh", "-c", command],
            capture_output=True,
            text=True,
            check=False,
        )
        assert rc in (None, done.returncode), done.stdout + done.stderr
        return done.stdout

    def settings(self, name):
        """Every file of SSH's settings with its sum and mode; keys of accounts aside."""
        which = "! -path '/etc/ssh/keys*' -printf '%p %m\\n' -type f"
        look = f"find /etc/ssh {which} -exec sha256sum {{}} +"
        return sorted(self.on(name, look).splitlines())

    def keys(self, name):
        return self.on(name, "cat ~gpubed/.ssh/authorized_keys /etc/ssh/keys/* 2> /dev/null", None)


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    made = Cluster(
        tmp_path_factory.mktemp("ground"),
        unique("sshd"),
        nodes=[{"name": "node", "count": 2, "machine": {"cpus": 1, "memory": "1 GiB"}}],
        networks={
            "control": {"subnet": CONTROL},
            "experiment": {"subnet": EXPERIMENT, "rate": "1 Gbit/s"},
        },
        configure=False,
    )
    try:
        made.call("up")
        folder = tmp_path_factory.mktemp("user")
        found = Ground(made, own.backend(made, folder, "node"))
        known = folder / "known_hosts"
        ports = [f"[{line.replace(' ', ']:2222 ', 1)}" for line in known.read_text().splitlines()]
        known.write_text(known.read_text() + "\n".join(ports) + "\n")
        for name in HOSTS:
            found.on(name, BARE)
            found.on(name, f"printf '{CLIENT}' > ~gpubed/.ssh/config")
        yield found
    finally:
        made.call("down", "-y")


def prepare(ground, ways):
    for name, way in zip(HOSTS, ways, strict=True):
        ground.on(name, "rm -rf /etc/ssh/sshd_config.d/* /etc/ssh/keys /etc/ssh/ssh_known_hosts")
        ground.on(name, WAYS[way] + "sshd -t && systemctl restart ssh")
    for host, way in zip(ground.backend["hosts"]["node"], ways, strict=True):
        host["port"] = 2222 if "ports" in way else 22


@pytest.fixture
def cluster(ground, tmp_path):
    """A function that makes hosts of ways into a cluster, and its playbook's path."""
    made = []

    def make(*ways):
        prepare(ground, ways)
        found = Cluster(
            tmp_path,
            unique("own"),
            backend=ground.backend,
            nodes=[{"name": "node", "count": 2}],
            networks={"experiment": {"subnet": EXPERIMENT, "rate": "1 Gbit/s"}},
            configure=False,
        )
        made.append(found)
        return found

    yield make
    for one in made:
        one.call("down", "-y", rc=None)


def book(tmp_path, *tasks, roles=()):
    path = tmp_path / "book.yml"
    play = {"hosts": "all", "become": True, "roles": list(roles), "tasks": list(tasks)}
    path.write_text(json.dumps([play]))
    return path


@pytest.mark.parametrize("ways", PAIRS)
def test_no_setting_of_the_owners_sshd_changes_and_nodes_find_each_other(
    ground, cluster, tmp_path, ways
):
    own_hosts = cluster(*ways)
    before = [(ground.settings(name), ground.keys(name)) for name in HOSTS]
    own_hosts.call("up", "-y")
    own_hosts.playbook(path=book(tmp_path, roles=ROLES))
    assert [ground.settings(name) for name in HOSTS] == [settings for settings, _ in before]
    for name in HOSTS:
        ground.on(name, "systemctl restart ssh")
        assert own_hosts.node(name, "hostname") == f"{name}\n"
        assert [ground.on(name, MESH.format(peer)) for peer in HOSTS] == [f"{n}\n" for n in HOSTS]
    assert "changed=0" in own_hosts.playbook(path=book(tmp_path, roles=["ssh_mesh"]))
    own_hosts.call("down", "-y")
    assert [(ground.settings(name), ground.keys(name)) for name in HOSTS] == before


def test_hosts_that_a_former_version_locked_are_opened(ground, cluster, tmp_path):
    own_hosts = cluster(*PAIRS[0])
    before = [ground.settings(name) for name in HOSTS]
    own_hosts.call("up", "-y")
    for name in HOSTS:
        ground.on(name, FORMER)
    ground.on("node-0", "sshd -t", rc=255)
    own_hosts.call("up", "-y")
    own_hosts.playbook(path=book(tmp_path, roles=ROLES))
    assert [ground.settings(name) for name in HOSTS] == before
    for name in HOSTS:
        ground.on(name, "sshd -t && systemctl restart ssh")


def test_settings_that_lock_the_operator_out_are_taken_back(ground, cluster, tmp_path):
    """They are legal: only a new login tells."""
    own_hosts = cluster(*PAIRS[0])
    own_hosts.call("up", "-y")
    lock = {"/etc/ssh/sshd_config.d/01-lock.conf": "AddressFamily any\n"}
    behind = {"/etc/ssh/sshd_config.d/01-lock.conf": "DenyUsers gpubed\n"}
    before = [ground.settings(name) for name in HOSTS]
    for files, why in (
        (lock, "is not allowed within a Match block"),
        (behind, "could not be reach"),
    ):
        task = {
            "ansible.builtin.include_role": {"name": "ssh_mesh", "tasks_from": "sshd"},
            "vars": {"ssh_mesh_settings": files},
            "when": "inventory_hostname == 'node-0'"
            if files is lock
            else "inventory_hostname == 'node-1'",
        }
        assert why in own_hosts.playbook(path=book(tmp_path, task), rc=2)
        assert [ground.settings(name) for name in HOSTS] == before
    assert [own_hosts.node(name, "hostname") for name in HOSTS] == [f"{name}\n" for name in HOSTS]


def test_accounts_that_the_owners_lists_keep_out_are_named_before_anything_changes(ground, cluster):
    own_hosts = cluster(*PAIRS[0])
    ground.on("node-1", "sed -i 's/ jupyter$//' /etc/ssh/sshd_config.d/05-cis.conf")
    before = [(ground.settings(name), ground.keys(name)) for name in HOSTS]
    said = (
        "`AllowGroups sshusers gpubed` (/etc/ssh/sshd_config.d/05-cis.conf, line 1) keeps jupyter "
        "out: add jupyter to it"
    )
    for words in (["doctor"], ["plan"], ["up", "-y"]):
        done = own_hosts.call(*words, rc=None)
        assert done.returncode
        assert said in " ".join((done.stdout + done.stderr).split()), words
    assert [(ground.settings(name), ground.keys(name)) for name in HOSTS] == before
    ground.on("node-1", "test ! -e /etc/gpubed/owner.json")
