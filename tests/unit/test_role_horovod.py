"""What roles horovod and ssh_mesh write for a node without ranks, rendered as Ansible does."""

from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from support import by_path, machines, role_variables

NODES = [{"name": "head-0", "slots": 0, "gpus": 0}, {"name": "node-0", "slots": 4, "gpus": 4}]


def render(role, name, **variables):
    text = (machines.ROOT / "roles" / role / "templates" / name).read_text()
    return Templar(DataLoader(), variables=variables).template(trust_as_template(text)).splitlines()


def test_a_node_without_ranks_is_in_no_hostfile():
    assert render("ssh_mesh", "hostfile.j2", gpubed_nodes=NODES) == ["node-0 slots=4"]


def test_a_node_without_ranks_has_settings_for_what_is_started_there():
    lines = render(
        "horovod",
        "horovod.env.j2",
        ansible_managed="managed",
        inventory_hostname="head-0",
        __horovod_simulated="",
        ansible_facts={"processor_nproc": 8},
        __horovod_address="10.0.0.1",
        __horovod_secrets="/shared/rendezvous",
        __horovod_interface="eth1",
        __horovod_network={"subnet": "10.0.0.0/24"},
        __horovod_node=NODES[0],
    )
    assert "OMP_NUM_THREADS=8" in lines


def simulated(state):
    node = {"gpubed_state_dir": str(state), "gpubed_node_id": "id-0"}
    return role_variables.value("horovod", "__horovod_simulated", "debian-12", **node)


def test_what_is_simulated_is_so_in_a_run_of_the_role_alone(tmp_path):
    """Nobody collects the node's facts then; those of the last run are on the controller."""
    (tmp_path / "facts").mkdir()
    (tmp_path / "facts/id-0.json").write_text('{"simulated": "A100-SXM4-80GB"}')
    assert simulated(tmp_path) == "A100-SXM4-80GB"
    (tmp_path / "facts/id-0.json").write_text('{"simulated": null}')
    assert simulated(tmp_path) == ""
    assert simulated(tmp_path / "where nothing was collected") == ""


def test_horovod_loads_the_driver_by_the_name_that_every_package_of_it_brings(
    tmp_path, monkeypatch
):
    """Some Ubuntu hosts have no libcuda.so, only libcuda.so.1: collectives ended there."""
    files = machines.ROOT / "roles/horovod/files"
    build_wheel = by_path.load(files / "build_wheel.py", "build_wheel")
    device = by_path.load(files / "gpubed-device", "gpubed_device_names")
    name = "horovod/torch/cuda_util.cc"
    mine = tuple(patch for patch in build_wheel.PATCHES if patch[0] == name)
    monkeypatch.setattr(build_wheel, "PATCHES", mine)
    source = tmp_path / name
    source.parent.mkdir(parents=True)
    # As Horovod 0.28.1 has it.
    source.write_text('  cudalib = dlopen("libcuda.so", RTLD_LAZY);\n')
    build_wheel.patch(tmp_path, 20)
    assert source.read_text() == f'  cudalib = dlopen("{device.DRIVER}", RTLD_LAZY);\n'
