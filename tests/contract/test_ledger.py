"""The ledger of an owner's host: what gpubed changed goes, what the owner has stays.

The host is a container with systemd, which an owner and a "role" (shell commands) change.
"""

import subprocess
import time
import uuid
from pathlib import Path

import pytest

from gpubed.backends.local import environment, image
from gpubed.backends.local.image import Recipe
from support import whole_host

pytestmark = pytest.mark.docker

ROOT = Path(__file__).parents[2]
LEDGER = "/var/lib/gpubed/ledger/ledger.py"
# As an administrator has it, before gpubed comes.
PREPARED = """
echo gpu1.example.org > /etc/hostname
hostname gpu1
printf '127.0.0.1 localhost\\n10.1.2.3 node-0 gpu1\\n' > /etc/hosts
mkdir -p /etc/docker
echo '{"bip": "172.30.0.1/16"}' > /etc/docker/daemon.json
chmod 640 /etc/docker/daemon.json
useradd --create-home alice
ln -s cuda-11.8 /usr/local/cuda
apt-get -qq update
apt-get -qq install -y --no-install-recommends cron tini >/dev/null
apt-mark hold tini
systemctl disable --now cron
"""
# What roles do: files, links, folders, packages, holds, units, accounts, the name.
ROLE = """
hostname node-0
echo node-0 > /etc/hostname
sed -i '/node-0/d' /etc/hosts
printf '# BEGIN gpubed\\n10.0.0.1 node-0\\n# END gpubed\\n' >> /etc/hosts
echo '{"live-restore": true}' > /etc/docker/daemon.json
chmod 644 /etc/docker/daemon.json
echo 'export CUDA_HOME=/shared/cuda' > /etc/profile.d/gpubed-cuda.sh
ln -sfn /shared/env/cuda /usr/local/cuda
mkdir -p /opt/gpubed /usr/local/lib/gpubed /etc/systemd/logind.conf.d
echo x > /usr/local/lib/gpubed/use.py
printf '[Login]\\nRemoveIPC=no\\n' > /etc/systemd/logind.conf.d/10-gpubed.conf
cat > /etc/systemd/system/gpubed-x.service <<END
[Service]
ExecStart=sleep infinity
[Install]
WantedBy=multi-user.target
END
systemctl daemon-reload
systemctl enable --now gpubed-x.service cron.service
useradd --create-home jupyter
usermod --append --groups users alice
apt-get -qq install -y --no-install-recommends munge >/dev/null
apt-mark unhold tini
apt-mark hold munge
"""

BROKEN_APT = """
mv /usr/bin/apt-get /usr/bin/apt-get.away
cat > /usr/bin/apt-get <<'END'
#!/bin/sh
case $* in *simulate*) exec apt-get.away "$@" ;; esac
echo "E: broken" >&2
exit 100
END
chmod +x /usr/bin/apt-get
"""


class Host:
    def __init__(self, name):
        self.name = name

    def sh(self, script, *words, rc=0):
        done = subprocess.run(
            ["docker", "exec", "-i", self.name, "sh", "-es", "--", *words],
            input=script,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == rc, done.stdout + done.stderr
        return done.stdout

    def state(self):
        return whole_host.state(lambda program: self.sh('python3 -c "$1"', program))

    def ledger(self, verb, rc=0):
        return self.sh(f"python3 {LEDGER} {verb}", rc=rc)

    def role(self, script):
        self.ledger("open")
        self.sh(script)
        self.ledger("close jupyter")

    def differs(self, before):
        return whole_host.differences(before, self.state())


@pytest.fixture
def host(tmp_path):
    tag = image.ensure(Recipe("debian-12"))
    made = Host(f"gpubed-ledger-{uuid.uuid4().hex[:8]}")
    mounts = [f"-v={path}:{where}:ro" for path, where in environment.ca_mount().items()]
    settings = [f"-e={name}={value}" for name, value in environment.environment().items()]
    subprocess.run(
        [
            *("docker", "run", "-d", "--name", made.name, *mounts, *settings),
            *("--cap-add=SYS_ADMIN", "--cap-add=NET_ADMIN", "--cgroupns=host"),
            *("--security-opt=seccomp=unconfined", "--security-opt=apparmor=unconfined"),
            *("--tmpfs=/run", "--tmpfs=/run/lock", "-v=/sys/fs/cgroup:/sys/fs/cgroup:rw"),
            *(tag, "/sbin/init"),
        ],
        check=True,
        capture_output=True,
    )
    try:
        for _ in range(60):
            if "running" in made.sh("systemctl is-system-running || true"):
                break
            time.sleep(0.5)
        made.sh(PREPARED)
        made.sh("mkdir -p /var/lib/gpubed/ledger")
        program = ROOT / "roles/base/files/ledger.py"
        subprocess.run(["docker", "cp", str(program), f"{made.name}:{LEDGER}"], check=True)
        yield made
    finally:
        subprocess.run(["docker", "rm", "-fv", made.name], check=True, capture_output=True)


def test_a_host_is_as_it_was(host):
    before = host.state()
    host.role(ROLE)
    assert host.differs(before)
    host.ledger("give-back")
    assert host.differs(before) == []
    assert host.sh("hostname; cat /etc/hostname").split() == ["gpu1", "gpu1.example.org"]


def test_what_the_owner_changed_since_stays(host):
    host.role(ROLE)
    host.sh("""
echo '10.1.2.4 other' >> /etc/hosts
echo '{"live-restore": true, "debug": true}' > /etc/docker/daemon.json
useradd --create-home bob
rm /etc/profile.d/gpubed-cuda.sh
echo mine > /etc/profile.d/owner.sh
echo data > /home/jupyter/results
touch -d '1 minute ago' /var/lib/gpubed/ledger/ledger.json
""")
    host.role("echo '# gpubed' >> /etc/hosts")
    said = host.ledger("give-back")
    hosts = host.sh("cat /etc/hosts").splitlines()
    assert hosts == ["127.0.0.1 localhost", "10.1.2.3 node-0 gpu1", "10.1.2.4 other"]
    assert "debug" in host.sh("cat /etc/docker/daemon.json")
    assert "bip" in host.sh("cat /etc/docker/daemon.json.before-gpubed")
    assert "/etc/docker/daemon.json was changed since gpubed wrote it" in said
    assert "these folders hold data and stay: /home/jupyter" in said
    assert host.sh("id -un bob; cat /etc/profile.d/owner.sh; cat /home/jupyter/results")


def test_people_whom_the_owner_lets_in_while_a_role_runs_stay(host):
    host.ledger("open")
    host.sh(f"{ROLE}\nuseradd --create-home carol\necho 'export A=1' > /etc/profile.d/carol.sh\n")
    host.ledger("close jupyter")
    assert "/var/backups/gpubed" in host.ledger("give-back")
    assert host.sh(
        "id -un carol; ! id jupyter 2>/dev/null; cat /var/backups/gpubed/etc/profile.d/*"
    )


def test_a_file_that_cannot_be_replaced_is_named_and_the_rest_given_back(host):
    before = host.state()
    host.role(ROLE)
    host.sh("mount --bind /etc/profile.d/gpubed-cuda.sh /etc/profile.d/gpubed-cuda.sh")
    assert "/etc/profile.d/gpubed-cuda.sh stays: " in host.ledger("give-back", rc=1)
    host.sh("umount /etc/profile.d/gpubed-cuda.sh")
    host.ledger("give-back")
    assert host.differs(before) == []


def test_what_a_killed_role_did_goes_too(host):
    before = host.state()
    host.ledger("open")
    host.sh(ROLE)
    host.role("echo next > /etc/gpubed-next")
    host.ledger("give-back")
    assert host.differs(before) == []


def test_a_role_that_is_switched_off_is_undone_and_the_others_stay(host):
    before = host.state()
    host.ledger("open first")
    host.sh(ROLE)
    host.ledger("close jupyter")
    first = host.state()
    host.ledger("open second")
    host.sh("""
echo '10.1.2.9 second' >> /etc/hosts
mkdir -p /etc/gpubed/second && echo key > /etc/gpubed/second/key
apt-get -qq install -y --no-install-recommends acct >/dev/null
""")
    host.ledger("close")
    host.sh("echo changed >> /etc/gpubed/second/key")
    assert "changed" in host.ledger("undo second")
    assert host.differs(first) == []
    host.ledger("open second")
    host.sh("echo '10.1.2.9 second' >> /etc/hosts")
    host.ledger("close")
    host.ledger("undo first")
    assert host.sh("grep -c second /etc/hosts").strip() == "1"
    host.sh("! id jupyter 2>/dev/null; ! dpkg --status munge 2>/dev/null >&2")
    host.ledger("give-back")
    assert host.differs(before) == []


def test_what_a_version_without_roles_left_of_one_goes(host):
    host.role("""
mkdir -p /etc/gpubed/slurm /etc/gpubed/firewall/open.d /etc/gpubed/authorized_keys.d
mkdir -p /etc/systemd/logind.conf.d
echo key > /etc/gpubed/authorized_keys.d/slurm
echo old > /etc/gpubed/firewall/open.d/slurm.nft
echo 'RemoveIPC=no' > /etc/systemd/logind.conf.d/60-gpubed-slurm.conf
echo '# by gpubed' > /etc/slurm.conf
printf '# mine\n# BEGIN gpubed role slurm\nx\n# END gpubed role slurm\n' > /etc/mine
echo mine > /etc/others.conf
printf '[Service]\nExecStart=sleep infinity\n' > /etc/systemd/system/x.service
systemctl daemon-reload; systemctl start x
""")
    host.ledger("open slurm")
    host.sh("echo new > /etc/gpubed/firewall/open.d/slurm.nft")
    host.ledger("close")
    words = "slurm x.service /etc/slurm.conf /etc/others.conf"
    assert "changed" in host.ledger(f"undo {words}")
    assert "changed" not in host.ledger(f"undo {words}")
    host.sh("! ls /etc/gpubed/firewall/open.d/slurm.nft /etc/gpubed/slurm 2>/dev/null")
    host.sh("! ls /etc/systemd/logind.conf.d/60-gpubed-slurm.conf /etc/slurm.conf 2>/dev/null")
    host.sh("ls /etc/others.conf /etc/gpubed/authorized_keys.d/slurm; systemctl is-active x")
    assert host.sh("cat /etc/mine") == "# mine\n"


def test_a_fault_of_apt_leaves_the_rest_given_back_and_a_second_call_goes_on(host):
    before = host.state()
    host.role(ROLE)
    host.sh(BROKEN_APT)
    assert "broken" in host.ledger("give-back", rc=1)
    assert host.sh("cat /etc/hostname").strip() == "gpu1.example.org"
    host.sh("mv /usr/bin/apt-get.away /usr/bin/apt-get")
    host.ledger("give-back")
    assert host.differs(before) == []
