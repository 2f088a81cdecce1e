"""What a role says that it reads of the cluster is what its words refer to: no less, no more."""

import re

import pytest

from gpubed.configuration import inventory, roles
from gpubed.core.paths import assets
from support import role_reads
from support.samples import sample_allocation, sample_plan
from support.specs import sample

# Of what gpubed gives to all nodes, what no declaration is asked for: the same for the life of a
# cluster, or in every fingerprint.
KNOWN_TO_ALL = {
    "gpubed_cluster",
    "gpubed_uuid",
    "gpubed_user",
    "gpubed_head",
    "gpubed_behind",
    "gpubed_one_host",
    "gpubed_state_dir",
    "gpubed_secrets_dir",
    "gpubed_environment",
    "gpubed_phases",
}


@pytest.mark.parametrize("role", roles.names())
def test_a_role_declares_what_it_reads(role):
    """With everything switched on; what is off may need less."""
    everything = sample("virtualwall", "cuda13", "all", 2)
    assert set(roles.reads(everything, role)) == role_reads.reads(role)


@pytest.mark.parametrize("role", roles.names())
def test_a_role_declares_whose_files_it_works_with(role):
    """Of other roles; a change there concerns this one, too."""
    sources = {source for source in roles.meta(role).sources if source.startswith("roles/")}
    assert sources == role_reads.calls(role)


def test_another_variable_of_the_cluster_is_looked_at_here_first():
    plan = sample_plan()
    given = {
        name for name in inventory.variables(plan, sample_allocation(plan)) if "gpubed" in name
    }
    assert given - KNOWN_TO_ALL == {"gpubed_nodes", "gpubed_networks"}


def test_filters_know_only_what_they_are_given():
    """They run on the controller, where a context would tell of all nodes."""
    for path in (assets() / "playbooks" / "filter_plugins").glob("*.py"):
        assert not re.search(r"pass_context|hostvars|play_hosts", path.read_text())
