"""Two nodes after role nvidia_container_toolkit, the first of which is to have GPUs.

NVIDIA's package is a stand-in (files/stand-in); the real one is a matter of a GPU.
"""

import pytest

OPTIONS = "/etc/gpubed/container.d/nvidia"
RELEASE = "docker version --format '{{.Server.Version}}'"


@pytest.fixture
def head(host):
    if host.check_output("hostname") != "node-0":
        pytest.skip("is to have no GPU")


@pytest.fixture
def knows_devices(host):
    return int(host.check_output(RELEASE).split(".")[0]) >= 25


def test_a_node_without_gpus_has_nothing_of_it_but_its_owners(host):
    """side_effect.yml: a newer toolkit was there before gpubed used it."""
    if host.check_output("hostname") == "node-0":
        pytest.skip("is to have GPUs")
    assert host.package("nvidia-container-toolkit").version == "1.21.0-1"
    assert not host.file("/etc/gpubed/container.d/nvidia").exists


def test_the_version_is_the_pinned_one(host, head):
    assert host.package("nvidia-container-toolkit").version == "1.20.0-1"
    assert "1001" in host.check_output("apt-cache policy nvidia-container-toolkit")


def test_the_gpus_are_listed_at_boot_and_when_the_driver_changes(host, head):
    assert host.service("nvidia-cdi-refresh.service").is_enabled
    assert host.service("nvidia-cdi-refresh.path").is_enabled
    assert host.service("nvidia-cdi-refresh.path").is_running


def test_a_change_of_the_driver_lists_the_gpus_again(host, head):
    host.check_output("mkdir -p /lib/modules/$(uname -r) && rm /var/run/cdi/nvidia.yaml")
    host.check_output("systemctl restart nvidia-cdi-refresh.path")
    host.check_output("echo >> /lib/modules/$(uname -r)/modules.dep")
    host.check_output(
        "timeout 10 sh -c 'until [ -s /var/run/cdi/nvidia.yaml ]; do sleep 0.2; done'"
    )
    assert host.check_output("nvidia-ctk cdi list").count("nvidia.com/gpu") == 3


def test_an_old_docker_has_nvidias_runtime_and_a_new_one_devices(host, head, knows_devices):
    runtimes = host.check_output("docker info --format '{{json .Runtimes}}'")
    option = host.check_output(f"{OPTIONS} 0")
    assert ("nvidia-container-runtime" in runtimes) != knows_devices
    assert option.startswith("--device" if knows_devices else "--runtime")


def test_a_container_is_given_the_gpus_of_its_job_and_no_others(host, head, knows_devices):
    option = host.check_output(f"{OPTIONS} 1 3").strip()
    assert option == (
        "--device nvidia.com/gpu=1 --device nvidia.com/gpu=3"
        if knows_devices
        else "--runtime nvidia --env NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=1,nvidia.com/gpu=3"
    )
    assert host.check_output(OPTIONS) == ""


def test_the_options_are_ones_that_docker_takes(host, head, knows_devices):
    host.check_output("apt-get install -qq -y busybox-static >/dev/null")
    host.check_output("tar -c -C / bin/busybox --dereference | docker import - box:1")
    run = f"docker run --rm $({OPTIONS} 1) box:1 /bin/busybox env"
    said = host.check_output(run).splitlines()
    given = "STAND_IN_GPU=1" if knows_devices else "NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=1"
    assert given in said


def test_a_gpu_that_is_missing_is_noticed(host, head):
    listed = host.check_output("nvidia-ctk cdi list | grep -c 'gpu=[0-9]'")
    host.check_output("echo 1 > /etc/stand-in-gpus; systemctl restart nvidia-cdi-refresh")
    fewer = host.check_output("nvidia-ctk cdi list | grep -c 'gpu=[0-9]'")
    host.check_output("rm /etc/stand-in-gpus; systemctl restart nvidia-cdi-refresh")
    assert (listed, fewer) == ("2", "1")
