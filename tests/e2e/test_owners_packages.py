"""A host as an administrator has it: docker.com's containerd.io, podman-docker, a held driver.

What gpubed would do to these packages is told by `plan` and `doctor` and refused by `up` and by
the role, before anything changes; packages are small ones, with the conflicts of the real ones.
"""

import subprocess

import pytest

from support import own
from support.cluster import Cluster, unique

pytestmark = [pytest.mark.testbeds, pytest.mark.e2e, pytest.mark.docker]

SUBNET = "10.200.218.0/24"
DRIVER = "libcuda1 libnvidia-ml1 nvidia-driver-cuda nvidia-kernel-open-dkms nvidia-persistenced"
PREPARE = f"""set -e
deb() {{
  mkdir -p /root/deb/DEBIAN
  printf 'Package: %s\\nVersion: %s\\nArchitecture: all\\nMaintainer: Owner <o@example.org>\\n' \
    "$1" "$2" > /root/deb/DEBIAN/control
  printf 'Description: stand-in\\n%b' "$3" >> /root/deb/DEBIAN/control
  dpkg-deb --root-owner-group --build /root/deb /root/$1.deb
  dpkg --install /root/$1.deb
}}
deb containerd.io 1.7.22-1 'Conflicts: containerd, runc\\nReplaces: containerd, runc\\n'
deb podman-docker 4.3.1 'Conflicts: docker.io\\n'
for name in {DRIVER}; do deb $name 570.86.15-1 ''; done
apt-mark hold {DRIVER}
apt-get --quiet update
"""
SEEN = """dpkg-query --show; apt-mark showhold; find /var/lib/gpubed /opt
find /etc -path /etc/ssl/certs -prune -o -type f -exec sha256sum {} + | sort -k 2"""
REFUSED = ["containerd.io 1.7.22-1 (from a .deb file) would be removed", "podman-docker 4.3.1"]


@pytest.fixture(scope="module")
def ground(docker, tmp_path_factory):
    """One host, installed by somebody else."""
    made = Cluster(
        tmp_path_factory.mktemp("ground"),
        unique("ground"),
        nodes=[{"name": "node", "count": 1, "machine": {"cpus": 1, "memory": "2 GiB"}}],
        networks={
            "control": {"subnet": "10.200.217.0/24"},
            "experiment": {"subnet": SUBNET, "rate": "100 Mbit/s"},
        },
        configure=False,
    )
    try:
        made.call("up")
        on_host(made, PREPARE)
        yield made
    finally:
        made.call("down", "-y")


@pytest.fixture(scope="module")
def cluster(ground, tmp_path_factory):
    root = tmp_path_factory.mktemp("own")
    made = Cluster(
        root,
        unique("own"),
        backend=own.backend(ground, root, "node"),
        nodes=[{"name": "node", "count": 1}],
        networks={"experiment": {"subnet": SUBNET, "rate": "100 Mbit/s"}},
        services={"docker": {}, "jupyterlab": None},
    )
    try:
        yield made
    finally:
        made.call("down", "-y")


def on_host(ground, command):
    [node] = ground.json("status")["nodes"]
    done = subprocess.run(
        ["docker", "exec", node["id"], "sh", "-c", command],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("verb", "rc"), [("doctor", 3), ("plan", 4), ("up", 4)])
def test_it_is_told_and_refused_before_anything_changes(cluster, ground, verb, rc):
    before = on_host(ground, SEEN)
    done = cluster.call(verb, rc=rc)
    said = done.stdout + done.stderr
    assert all(words in said for words in REFUSED), said
    assert "packages: {may_change: [containerd.io, podman-docker]}" in said
    assert "570" not in said, "what nothing asks for stays unsaid"
    assert on_host(ground, SEEN) == before


def test_the_role_refuses_it_too(cluster, ground):
    cluster.edit(lambda spec: spec.update(configure=False))
    cluster.call("up")
    cluster.edit(lambda spec: spec.update(configure=True))
    cluster.call("configure", "--files-only")
    before = on_host(ground, "dpkg-query --show; apt-mark showhold")
    said = cluster.playbook("--tags", "base,docker", rc=2)
    assert all(words in said for words in REFUSED), said
    assert "packages: {may_change: [containerd.io, podman-docker]}" in said
    after = on_host(ground, "dpkg-query --show; apt-mark showhold")
    assert not set(before.splitlines()) - set(after.splitlines())
    assert on_host(ground, "find /etc/docker /usr/bin/dockerd 2>/dev/null; true") == ""


def test_what_the_owner_allows_is_done_and_no_more(cluster, ground):
    allowed = {"may_change": ["containerd.io", "podman-docker"]}
    cluster.edit(lambda spec: spec.update(packages=allowed))
    assert "containerd.io 1.7.22-1 (from a .deb file) would be removed (allowed)" in (
        cluster.call("plan", rc=None).stderr
    )
    cluster.call("configure", "--files-only")
    cluster.playbook("--tags", "base,docker")
    there = "dpkg-query --show --showformat='${Package} ${db:Status-Status} ${Version}\\n'"
    packages = on_host(ground, there)
    assert "docker.io installed" in packages
    assert "containerd.io installed" not in packages
    assert packages.count("installed 570.86.15-1") == 5
    assert on_host(ground, "apt-mark showhold").split() == sorted(DRIVER.split())
