"""Debian's real NVIDIA kernel module, built by DKMS for Debian's real kernel.

In a container, whose kernel is another one: DKMS builds for the kernel whose
headers are there. It takes minutes, so it runs only with GPUBED_DKMS=1.
"""

import os
import re

import docker
import pytest

from gpubed.backends.local import image

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(
        os.environ.get("GPUBED_DKMS") != "1", reason="takes minutes: run it with GPUBED_DKMS=1"
    ),
]
INSTALL = """
set -e
export DEBIAN_FRONTEND=noninteractive
# Nothing is started in a container that has no init.
printf '#!/bin/sh\\nexit 101\\n' >/usr/sbin/policy-rc.d
chmod +x /usr/sbin/policy-rc.d
sed -i -E 's/^(deb .*|Components:) main$/\\1 main contrib non-free non-free-firmware/' \\
  $(ls /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources 2>/dev/null)
apt-get -q update
apt-get -qy install --no-install-recommends linux-headers-amd64 nvidia-kernel-dkms
"""


@pytest.fixture(scope="module")
def node():
    """A container of the node image with headers and module installed."""
    tag = image.ensure(image.Recipe("debian-12"))
    made = docker.from_env().containers.run(tag, "sleep infinity", detach=True, network_mode="host")
    try:
        code, output = made.exec_run(["bash", "-c", INSTALL])
        assert code == 0, output.decode()[-3000:]
        yield lambda *command: made.exec_run(list(command))[1].decode()
    finally:
        made.remove(force=True)


@pytest.fixture(scope="module")
def kernel(node):
    (found,) = node("ls", "/lib/modules").split()
    return found


def test_dkms_built_it_for_the_kernel_of_the_headers(node, kernel):
    assert node("uname", "-r").strip() != kernel
    assert re.search(
        rf"^nvidia-current/[\d.]+, {re.escape(kernel)}, x86_64: installed$",
        node("dkms", "status"),
        re.M,
    )


def test_module_agrees_with_that_kernel(node, kernel):
    vermagic = node("modinfo", "-k", kernel, "-F", "vermagic", "nvidia-current")
    assert vermagic.split()[0] == kernel


def test_module_has_the_packages_version(node, kernel):
    version = node("modinfo", "-k", kernel, "-F", "version", "nvidia-current").strip()
    packaged = node("dpkg-query", "--show", "--showformat=${Version}", "nvidia-kernel-dkms")
    assert packaged.startswith(f"{version}-")


def test_module_loads():
    pytest.skip("loading needs that kernel and a GPU; a container has its host's kernel")
