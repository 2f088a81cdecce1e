"""`--tags ROLE` alone: a role uses what it sets itself, what gpubed renders, and nothing else."""

import pytest

from gpubed.configuration import inventory, roles
from support import role_names
from support.samples import sample_allocation, sample_plan

# Ansible takes backslashes in expressions as they are.
pytestmark = pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")
# Ansible's own, of every task.
MAGIC = {
    "ansible_check_mode",
    "ansible_facts",
    "ansible_failed_result",
    "ansible_managed",
    "ansible_parent_role_names",
    "ansible_play_hosts",
    "ansible_play_hosts_all",
    "ansible_playbook_python",
    "ansible_python_interpreter",
    "group_names",
    "groups",
    "hostvars",
    "inventory_dir",
    "inventory_hostname",
    "lookup",
    "now",
    "omit",
    "query",
    "range",
    "role_name",
    "role_path",
}
ENTRIES = [(role, entry) for role in roles.names() for entry in role_names.entries(role)]


@pytest.fixture(scope="module")
def rendered():
    """The names that every inventory gives to all hosts; the inputs of roles are the roles'."""
    plan = sample_plan(storage={"shared": {"provider": "nfs"}})
    found = inventory.variables(plan, sample_allocation(plan))
    hosts = inventory.hosts(sample_allocation(plan))["all"]["hosts"]
    return {*found, *hosts["node-0"], "gpubed_fingerprints"}


@pytest.mark.parametrize(("role", "entry"), ENTRIES, ids=["-".join(e) for e in ENTRIES])
def test_no_other_role_has_to_run_first(rendered, role, entry):
    assert role_names.missing(role, entry) - rendered - MAGIC == set()


def test_what_only_another_run_would_bring_is_noticed():
    """The file by itself, without the tasks that come before it in its role."""
    assert "hardware_facts" in role_names.missing("nvidia_driver", "leave")
