"""What role slurm notes of what it made on a host, and undoes only there."""

import pytest

from support import role_variables
from support.role_tasks import play
from support.slurm_owners import AS_ROOT, UUID, getent, put

pytestmark = pytest.mark.process


@AS_ROOT
@pytest.mark.parametrize("ours", [True, False])
def test_what_comes_with_the_role_is_noted_before_the_mark(tmp_path, ours):
    """Once: what is there when the role runs again, it installed itself."""
    put(tmp_path, "slurm/brought")
    done = play(
        tmp_path,
        "slurm",
        "leaving",
        inventory_hostname="node-0",
        gpubed_head="node-0",
        gpubed_uuid=UUID,
        ansible_managed="managed",
        base_there={"mark": ["mark"]} if ours else {},
        __slurm_folder=str(tmp_path / "slurm"),
        __slurm_database_note=str(tmp_path / "slurm-database"),
        __slurm_leaving=str(tmp_path / "leave.d/slurm"),
        __slurm_packages=["munge", "slurmd"],
        __slurm_head_packages=["mariadb-server"],
    )
    assert done.code == 0, done.said
    noted = [call for call in done.calls if call.startswith("base.brought")]
    assert noted == ([] if ours else ["base.brought munge slurmd mariadb-server"])
    # What a cluster before brought is the owner's.
    assert (tmp_path / "slurm/brought").exists() is ours
    # It outlives Slurm, as do the records.
    assert (tmp_path / "slurm-database").exists()


@pytest.mark.parametrize("used", [True, False])
def test_a_server_that_others_use_goes_on_and_stays(used):
    owns = role_variables.value(
        "slurm",
        "__slurm_owns",
        "debian-12",
        inventory_hostname="node-0",
        gpubed_head="node-0",
        __slurm_others={"stdout_lines": ["/var/lib/mysql/wiki"] * used},
    )
    assert ("mariadb.service" in owns["units"]) is not used
    assert owns["packages"]["kept"] == ["mariadb-server"] * used
    # It would delete the owner's files in /etc/slurm.
    assert owns["packages"]["purge"] is False


@pytest.mark.parametrize(
    ("said", "ours"), [(None, False), ("", True), ("# cluster: 1a1b\n", False)]
)
def test_slurm_is_undone_only_where_this_cluster_set_it_up(tmp_path, said, ours):
    """In check mode: nothing is removed here. The owner's slurm.conf plays no part.

    A mark that names no cluster is a former version's.
    """
    mark = tmp_path / "mark"
    mark.write_text(said) if said is not None else None
    done = play(
        tmp_path,
        "slurm",
        "absent",
        check=True,
        programs={"getent": getent("gpubed-bob")},
        inventory_hostname="node-0",
        gpubed_head="node-0",
        gpubed_uuid=UUID,
        gpubed_fingerprints={},
        __slurm_condition=str(mark),
        __slurm_folder=str(tmp_path / "slurm"),
    )
    assert ("Ask who is a researcher" in done.tasks) == ours, done.said
