"""Two nodes after role docker."""

import json
import socket
import time

import pytest

PUBLISHED = 8085
OPENED = 8086
BOX = "/bin/busybox"


@pytest.fixture(scope="module")
def image(host):
    """An image of one program; no registry is needed."""
    host.check_output(
        "dpkg-query -s busybox-static >/dev/null 2>&1"
        " || apt-get install -qq -y busybox-static >/dev/null"
    )
    host.check_output(
        "mkdir -p /tmp/box/bin && cp /bin/busybox /tmp/box/bin && ln -sf busybox /tmp/box/bin/sh"
        " && tar -c -C /tmp/box . | docker import - box:1"
    )
    yield "box:1"
    host.check_output("docker rmi --force box:1")
    # The node is compared with what it was.
    host.check_output("apt-get purge -qq -y busybox-static >/dev/null")


@pytest.fixture(scope="module")
def published(host, image):
    """A container that publishes a port."""
    host.check_output(
        f"docker run -d --name web -p {PUBLISHED}:80 -p {OPENED}:80 {image}"
        f" {BOX} httpd -f -p 80 -h /bin"
    )
    yield PUBLISHED
    host.check_output("docker rm --force web")


@pytest.fixture(scope="module")
def info(host):
    return json.loads(host.check_output("docker info --format '{{json .}}'"))


@pytest.fixture
def control_address(host):
    own = host.check_output("hostname")
    return host.check_output(f"grep ' {own}.control$' /etc/hosts").split()[0]


def answers(address, port):
    """Say whether a port of a node answers to this machine, outside of the cluster."""
    with socket.socket() as client:
        client.settimeout(3)
        return client.connect_ex((address, port)) == 0


def fellow_gets(host, port):
    own = host.check_output("hostname")
    other = {"node-0": "node-1", "node-1": "node-0"}[own]
    ask = f"curl -sf -m 3 -o /dev/null http://{own}:{port}/busybox"
    return host.run(f"runuser -u gpubed -- ssh -o BatchMode=yes {other} {ask}").rc == 0


def test_containers_outlive_the_daemon(info):
    assert info["LiveRestoreEnabled"]


def test_layers_are_not_copied_where_the_disk_allows_it(host, info):
    below = host.check_output("stat --file-system --format=%T /var/lib/docker")
    assert (info["Driver"] == "overlay2") == (below in {"ext2/ext3", "xfs"})


def test_logs_are_rotated(host, image):
    name = host.check_output(f"docker create {image} {BOX} true")
    config = json.loads(host.check_output(f"docker inspect {name}"))[0]["HostConfig"]["LogConfig"]
    host.check_output(f"docker rm {name}")
    assert config["Config"] == {"max-size": "10m", "max-file": "3"}


def test_it_listens_on_no_tcp_port(host):
    assert "dockerd" not in host.check_output("ss -Hltnp")


def test_the_user_may_use_it(host):
    assert host.run("runuser -l gpubed -c 'docker version'").rc == 0


def test_others_may_not(host):
    assert host.run("runuser -u nobody -- docker version").rc != 0


def test_a_published_port_is_closed_from_outside(host, published, control_address):
    assert not answers(control_address, published)


def test_a_published_port_is_open_to_the_cluster(host, published):
    assert fellow_gets(host, published)


def test_a_reload_of_the_firewall_keeps_both(host, published, control_address):
    host.check_output("systemctl restart gpubed-firewall")
    assert (answers(control_address, published), fellow_gets(host, published)) == (False, True)


def test_containers_reach_out(host, image):
    other = {"node-0": "node-1", "node-1": "node-0"}[host.check_output("hostname")]
    address = host.check_output(f"getent ahostsv4 {other}.control").split()[0]
    ask = f"{BOX} nc -w 5 {address} 22 </dev/null; true"
    assert host.check_output(f"docker run --rm {image} {BOX} sh -c '{ask}'").startswith("SSH-")


def test_an_opened_port_is_published_to_the_world(host, published, control_address):
    rule = f"meta l4proto tcp ct original proto-dst {OPENED} accept"
    before = answers(control_address, OPENED)
    host.check_output(f"nft add rule inet gpubed openings {rule}")
    after = answers(control_address, OPENED)
    host.check_output("systemctl restart gpubed-firewall")
    assert (before, after) == (False, True)


def test_a_rank_in_a_container_is_the_user_in_the_same_folder(host, image):
    command = f"cd /shared && HOROVOD_RANK=1 SECRET=2 gpubed-container {image}"
    said = host.check_output(
        f"runuser -l gpubed -c '{command} {BOX} sh -c \"{BOX} id -u; pwd; {BOX} env\"'"
    ).splitlines()
    assert said[:2] == ["1000", "/shared"]
    assert "HOROVOD_RANK=1" in said
    assert "SECRET=2" not in said


def test_a_rank_has_the_nodes_network_and_limits(host, image):
    ask = f'{BOX} sh -c "{BOX} hostname; ulimit -H -l"'
    said = host.check_output(f"runuser -l gpubed -c 'gpubed-container {image} {ask}'").split()
    bare = host.check_output("runuser -l gpubed -c 'hostname; ulimit -H -l'").split()
    assert said == bare


@pytest.fixture
def told(host):
    """A role's program that says which GPUs it was asked to give, as a variable of the rank."""
    program = "/etc/gpubed/container.d/50-told"
    line = 'printf -- "--env GPUBED_TOLD=%s" "$(echo "$@" | tr " " ,)"'
    host.check_output(f"printf '#!/bin/sh\n%s\n' '{line}' > {program} && chmod 755 {program}")
    yield
    host.check_output(f"rm {program}")


@pytest.mark.parametrize(
    ("variables", "gpus"),
    [
        ("", ""),
        ("SLURM_JOB_ID=7", ""),
        ("SLURM_JOB_ID=7 SLURM_JOB_GPUS=2", "2"),
        ("SLURM_JOB_ID=7 SLURM_JOB_GPUS=0 SLURM_STEP_ID=0 SLURM_STEP_GPUS=1,3", "1,3"),
        ("SLURM_JOB_ID=7 SLURM_JOB_GPUS=0 SLURM_STEP_ID=0", ""),
    ],
)
def test_a_rank_has_the_gpus_of_its_job_only(host, image, told, variables, gpus):
    start = f"{variables} CUDA_VISIBLE_DEVICES=5 gpubed-container {image} {BOX} env"
    said = host.check_output(f"runuser -l gpubed -c '{start}'").splitlines()
    assert f"GPUBED_TOLD={gpus}" in said
    # Without a scheduler a container has all of them, under the numbers of the node.
    assert ("CUDA_VISIBLE_DEVICES=5" in said) == (variables == "")


def test_a_rank_has_the_cpus_that_it_is_bound_to(host, image):
    one = host.check_output("nproc --all && taskset -cp 1").splitlines()[-1].split()[-1]
    cpu = one.split(",")[0].split("-")[0]
    ask = f"{BOX} grep Cpus_allowed_list /proc/self/status"
    start = f"taskset --cpu-list {cpu} gpubed-container {image} {ask}"
    assert host.check_output(f"runuser -l gpubed -c '{start}'").split() == [
        "Cpus_allowed_list:",
        cpu,
    ]


def test_a_rank_sees_settings_of_nccl_and_folders_of_the_specification(host, image):
    host.check_output("echo NCCL_DEBUG=WARN > /etc/nccl.conf && mkdir -p /datasets/set")
    ask = f'{BOX} sh -c "{BOX} cat /etc/nccl.conf; {BOX} ls /datasets; {BOX} ls -d /scratch"'
    said = host.run(f"runuser -l gpubed -c 'gpubed-container {image} {ask}'")
    host.check_output("rm -r /etc/nccl.conf /datasets")
    assert said.stdout.split() == ["NCCL_DEBUG=WARN", "set"], "the node has no /scratch"


def test_a_rank_passes_its_exit_code_on_and_leaves_no_container(host, image):
    ended = host.run(f"runuser -l gpubed -c 'gpubed-container {image} {BOX} sh -c \"exit 7\"'")
    assert (ended.rc, host.check_output("docker ps -aq --filter name=gpubed-")) == (7, "")


def test_a_rank_that_is_ended_takes_its_container_along(host, image):
    host.check_output(
        f"runuser -l gpubed -c 'timeout 3 gpubed-container {image} {BOX} sleep 60 || true'"
    )
    assert host.check_output("docker ps -q --filter name=gpubed-") == ""


def test_an_image_that_is_missing_is_named(host):
    ended = host.run("runuser -l gpubed -c 'gpubed-container no/such:1 true'")
    assert ended.rc != 0
    assert "no/such:1" in ended.stderr


def test_an_image_that_is_kept_can_be_loaded_once(host, image):
    name = f"kept/by-{host.check_output('hostname')}:1"
    host.check_output(f"docker tag {image} {name}")
    host.check_output(f"runuser -l gpubed -c 'gpubed-image keep {name}'")
    host.check_output(f"docker rmi {name}")
    loads = [host.check_output("runuser -l gpubed -c 'gpubed-image load'") for _ in range(2)]
    host.check_output(f"docker rmi {name}; rm /shared/images/kept_by*")
    assert name in loads[0]
    assert loads[1] == ""


def test_an_archive_without_the_image_is_refused(host, image):
    host.check_output(f"docker save {image} -o /tmp/box.tar && chmod a+r /tmp/box.tar")
    ended = host.run("runuser -l gpubed -c 'gpubed-image keep other:1 /tmp/box.tar'")
    assert ended.rc != 0
    assert "/tmp/box.tar holds no image other:1" in ended.stderr


def test_containers_go_on_while_the_daemon_restarts(host, published):
    before = host.check_output("docker inspect --format '{{.State.Pid}}' web")
    host.check_output("systemctl restart docker")
    assert host.check_output("docker inspect --format '{{.State.Pid}}' web") == before
    time.sleep(1)
    assert fellow_gets(host, published)
