"""What the role rdma derives, where no adapter can be tested on."""

import subprocess

import pytest
import yaml
from jinja2.nativetypes import NativeEnvironment

from gpubed.configuration import roles
from gpubed.core.paths import assets
from support import role_tasks
from support.samples import sample_plan


def derived(name, **inputs):
    variables = yaml.safe_load((assets() / "roles/rdma/vars/main.yml").read_text())
    return NativeEnvironment().from_string(variables[name]).render(inputs)


@pytest.mark.parametrize(("dscp", "tos", "priority"), [(26, 106, 3), (0, 2, 0), (48, 194, 6)])
def test_type_of_service_and_priority_follow_from_the_dscp(dscp, tos, priority):
    assert derived("__rdma_tos", rdma_dscp=dscp) == tos
    assert derived("__rdma_priority", rdma_dscp=dscp) == priority


@pytest.mark.parametrize(
    ("wanted", "enabled", "software"),
    [(None, False, False), ({}, True, True), ({"device": "hardware"}, True, False)],
)
def test_specification_decides_what_the_role_does(wanted, enabled, software):
    plan = sample_plan(networks={"experiment": {"rate": "1 Gbit/s", "rdma": wanted}})
    found = roles.variables(plan)
    assert (found["rdma_enabled"], found["rdma_software"]) == (enabled, software)


@pytest.mark.process
@pytest.mark.parametrize(
    ("type_", "address", "refused"),
    [
        ("infiniband", "10.0.0.2", True),
        ("infiniband", "10.9.0.2", False),  # a storage network
    ],
)
def test_rdma_over_infiniband_is_refused_before_anything_changes(tmp_path, type_, address, refused):
    network = {"device": "ib0", "type": type_, "ipv4": {"address": address}}
    done = role_tasks.play(
        tmp_path,
        "rdma",
        "preflight",
        programs={"modprobe": ""},
        facts={"ib0": network, "lo": {"device": "lo", "type": "loopback"}},
        gpubed_nodes=[{"name": "node-0", "experiment_address": "10.0.0.2"}],
    )
    assert (done.code != 0) == refused, done.said
    assert ("leave it out, NCCL uses InfiniBand without" in done.said) == refused


STANDS_IN = {
    "ip": """
case "$*" in *10.10.1.11) shown=1 ;; *10.10.0.0/16) shown='0 1 2 3' ;; esac
for number in $shown; do
  echo "$number: rail$number    inet 10.10.$number.11/16 scope global rail$number"
done""",
    "rdma": """
for number in 0 1 2 3 4; do
  echo "link mlx5_$number/1 state ACTIVE physical_state LINK_UP netdev rail$number "
done
echo "link mlx5_5/1 state DOWN physical_state DISABLED netdev rail1 "
echo "link mlx5_6/1 subnet_prefix fe80:0000:0000:0000 lid 1 state ACTIVE physical_state LINK_UP "
""",
    "dcb": 'echo "dcb $*" >> "$0.log"',
    "modprobe": "",
    "mountpoint": "",
}


@pytest.fixture
def program(tmp_path):
    """A function that runs `gpubed-rdma` of a host with five adapters, the third of another rate.

    Tools and kernel are STAND-INS; what `rdma link show` writes has the shape of iproute2's.
    """
    for name, text in STANDS_IN.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    for number in range(7):
        port = tmp_path / f"sys/class/infiniband/mlx5_{number}/ports/1"
        port.mkdir(parents=True)
        (port / "rate").write_text(f"{25 if number == 2 else 400} Gb/sec (4X NDR)\n")
        (tmp_path / f"sys/kernel/config/rdma_cm/mlx5_{number}/ports/1").mkdir(parents=True)
    settings = "ADDRESS=10.10.1.11\nSUBNET=10.10.0.0/16\nSOFTWARE=0\n"
    (tmp_path / "rdma.settings").write_text(settings + "DSCP=26\nTOS=106\nPRIORITY=3\nPFC=1\n")
    text = (assets() / "roles/rdma/files/gpubed-rdma").read_text()
    text = text.replace("/etc/gpubed/rdma\n", f"{tmp_path}/rdma.settings\n", 2)
    text = text.replace("PATH=/usr/sbin", f"PATH={tmp_path}:/usr/sbin")
    text = text.replace("/sys/", f"{tmp_path}/sys/")

    def run(verb):
        done = subprocess.run(["sh", "-c", text, "sh", verb], capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout.decode().splitlines()

    return run


@pytest.mark.process
def test_every_adapter_of_jobs_is_set_up(program, tmp_path):
    assert program("device") == ["mlx5_1"]
    assert program("ports") == ["mlx5_0:1 rail0", "mlx5_1:1 rail1", "mlx5_3:1 rail3"]
    program("start")
    marked = (tmp_path / "sys/kernel/config/rdma_cm").glob("*/ports/1/default_roce_tos")
    assert {path.parts[-4]: path.read_text() for path in marked} == dict.fromkeys(
        ("mlx5_0", "mlx5_1", "mlx5_3"), "106\n"
    )
    said = (tmp_path / "dcb.log").read_text().splitlines()
    assert said == [
        line
        for rail in ("rail0", "rail1", "rail3")
        for line in (
            f"dcb app replace dev {rail} dscp-prio 26:3",
            f"dcb pfc set dev {rail} prio-pfc all:off 3:on",
        )
    ]
