"""The user data of the OpenStack backend, read by Debian's real cloud-init.

In a container that boots systemd, with the data on its disk (NoCloud) in place of a
metadata service.
"""

import io
import subprocess
import tarfile
import time

import docker
import pytest

from gpubed.backends.local import container, environment, image
from gpubed.backends.openstack import cloud_init
from gpubed.core import secret

pytestmark = pytest.mark.docker
SEED = "/var/lib/cloud/seed/nocloud"
INSTALL = f"""
set -e
export DEBIAN_FRONTEND=noninteractive
until [ "$(systemctl is-system-running)" = running ]; do sleep 0.3; done
apt-get -q update
apt-get -qy install --no-install-recommends cloud-init
# What a cloud's image does not have either.
userdel --remove gpubed 2>/dev/null || true
rm -f /etc/sudoers.d/gpubed /etc/ssh/sshd_config.d/gpubed.conf
echo 'network: {{config: disabled}}' >/etc/cloud/cloud.cfg.d/90-test.cfg
mkdir -p {SEED}
"""


# What a user adds: more of the lists, and other values that do not count.
OWN = """\
#cloud-config
hostname: other
ssh_pwauth: true
users: [{name: colleague}]
runcmd: [[touch, /mine]]
"""


class Node:
    """A container that has booted with user data."""

    def __init__(self, made, folder):
        self.made, self.folder = made, folder
        self.public_key = secret.ensure_key(folder / "keys" / "id")
        self.host_key = secret.ensure_key(folder / "keys" / "host")

    def boot(self):
        private = (self.folder / "keys" / "host").read_text()
        keys = (self.public_key, private, self.host_key)
        ours = cloud_init.user_data("node-7", *keys)
        text = cloud_init.user_data("node-7", *keys, own=OWN)
        files = {"user-data": text, "meta-data": "instance-id: i-1\n", "ours": ours}
        self.made.put_archive(SEED, _tar(files))
        self.schema = self.run("cloud-init", "schema", "--config-file", f"{SEED}/ours")
        self.made.restart()
        deadline = time.monotonic() + 120
        # Its locale is not in this small image, which is an error to cloud-init, and not ours.
        while not {"done", "error"} & set(self.run("cloud-init", "status").split()):
            assert time.monotonic() < deadline, self.run("cloud-init", "status", "--long")
            time.sleep(1)
        self.made.reload()

    def run(self, *command):
        return self.made.exec_run(list(command))[1].decode()

    def ssh(self, command):
        (network,) = self.made.attrs["NetworkSettings"]["Networks"].values()
        known = self.folder / "known_hosts"
        known.write_text(f"{network['IPAddress']} {self.host_key}\n")
        options = ["StrictHostKeyChecking=yes", f"UserKnownHostsFile={known}", "IdentitiesOnly=yes"]
        key = ["-i", self.folder / "keys" / "id", *(f"-o{option}" for option in options)]
        return subprocess.run(
            ["ssh", *key, f"gpubed@{network['IPAddress']}", command],
            capture_output=True,
            text=True,
            check=True,
        ).stdout


def _tar(files):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return packed.getvalue()


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    tag = image.ensure(image.Recipe("debian-12"))
    flags = {**container._SYSTEMD, **container._WIDE, "volumes": container._TREE}
    made = docker.from_env().containers.run(tag, detach=True, **flags)
    try:
        code, output = made.exec_run(["bash", "-c", INSTALL], environment=environment.environment())
        assert code == 0, output.decode()[-3000:]
        booted = Node(made, tmp_path_factory.mktemp("node"))
        booted.boot()
        yield booted
    finally:
        made.remove(force=True, v=True)


def test_cloud_init_finds_nothing_wrong_with_it(node):
    assert "Valid" in node.schema


def test_the_cluster_s_key_opens_the_door_and_the_host_key_is_the_one_we_know(node):
    assert node.ssh("hostname; sudo -n id -u").split() == ["node-7", "0"]


def test_there_is_no_other_host_key(node):
    assert node.run("sh", "-c", "ls /etc/ssh/ssh_host_*_key") == "/etc/ssh/ssh_host_ed25519_key\n"


def test_a_users_own_data_are_done_too(node):
    assert node.run("ls", "/mine") == "/mine\n"
    assert node.run("id", "-un", "colleague") == "colleague\n"


def test_nobody_has_a_password(node):
    assert node.run("passwd", "--status", "gpubed").split()[1] == "L"
    assert "passwordauthentication no" in node.run("sshd", "-T")


def test_only_root_reads_the_user_data(node):
    assert "PRIVATE KEY" in node.run("cat", "/var/lib/cloud/instance/user-data.txt")
    with pytest.raises(subprocess.CalledProcessError):
        node.ssh("cat /var/lib/cloud/instance/user-data.txt")


def test_the_metadata_service_is_out_of_reach(node):
    assert node.run("systemctl", "is-active", "gpubed-metadata.service") == "active\n"
    assert "prohibit" in node.run("ip", "route", "show", "type", "prohibit")
    reach = "python3 -c 'import socket; socket.create_connection((\"169.254.169.254\", 80), 3)'"
    with pytest.raises(subprocess.CalledProcessError) as refused:
        node.ssh(reach)
    assert "PermissionError" in refused.value.stderr
