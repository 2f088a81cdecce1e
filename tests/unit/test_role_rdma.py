"""What the role rdma derives, where no adapter can be tested on."""

import pytest
import yaml
from jinja2.nativetypes import NativeEnvironment

from gpubed.configuration import roles
from gpubed.core.paths import assets
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


def test_no_experiment_network_is_no_rdma():
    assert roles.variables(sample_plan(networks={}))["rdma_enabled"] is False
