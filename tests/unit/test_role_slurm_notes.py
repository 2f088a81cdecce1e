"""What role slurm notes of what it made on a host, and undoes only there."""

import subprocess

import pytest
import yaml

from support import role_variables
from support.role_tasks import play
from support.slurm_owners import AS_ROOT, ROLE, UUID, getent, put

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


@AS_ROOT
@pytest.mark.parametrize(
    ("before", "brought"),
    [
        (None, ["nvml", "munge", "slurmd", "mariadb-server"]),
        ("", ["nvml", "munge", "slurmd", "mariadb-server"]),
        ("munge\n", ["nvml", "slurmd", "mariadb-server"]),
        ("nvml\nmunge\nslurmd\nmariadb-server\n", []),
    ],
)
def test_what_a_former_version_brought_is_what_it_did_not_find(tmp_path, before, brought):
    folder = tmp_path / "slurm"

    def known():
        done = play(
            tmp_path,
            "slurm",
            "former",
            inventory_hostname="node-0",
            gpubed_head="node-0",
            __slurm_folder=str(folder),
            __slurm_nvml_package="nvml",
            __slurm_packages=["munge", "slurmd"],
            __slurm_head_packages=["mariadb-server"],
        )
        assert done.code == 0, done.said

    known()
    assert not folder.exists(), "a removal had come as far as the notes"
    folder.mkdir()
    if before is not None:
        (folder / "packages").write_text(before)
    known()
    assert (folder / "brought").read_text().split() == brought
    # Where it has noted that, it adds what it brings later.
    (folder / "brought").write_text("later\n")
    known()
    assert (folder / "brought").read_text() == "later\n"


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


def test_the_mark_is_written_before_all_else():
    present = yaml.safe_load((ROLE / "tasks/present.yml").read_text())
    kinds = [f"ansible.builtin.{how}_tasks" for how in ("import", "include")]
    files = [task[kind] for task in present for kind in kinds if kind in task]
    # The note of accounts before the mark: without it the role would take them for its own. What
    # the node had as the head goes while the hook still says so.
    assert files[:4] == ["preflight.yml", "former_head.yml", "leaving.yml", "condition.yml"]


def test_the_mark_is_removed_after_all_else():
    """All but its folder; and notes after what they tell of."""
    undo = yaml.safe_load((ROLE / "tasks/undo.yml").read_text())
    *before, common, folder = undo
    assert common["ansible.builtin.include_role"] == {"name": "base", "tasks_from": "remove"}
    assert "__slurm_condition" not in str(before)
    assert "-empty -delete" in folder["ansible.builtin.command"]
    owns = role_variables.value(
        "slurm",
        "__slurm_owns",
        "debian-12",
        inventory_hostname="node-0",
        gpubed_head="node-0",
        __slurm_folder="/etc/gpubed/slurm",
    )
    assert owns["mark"] == "/etc/systemd/system/slurmd.service.d/gpubed.conf"
    assert owns["files"][-1] == {"path": "/etc/gpubed/slurm", "tree": True}


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


def test_a_mark_that_names_this_cluster_is_its_own(tmp_path):
    is_ours = role_variables.value(
        "slurm",
        "__slurm_is_ours",
        "debian-12",
        gpubed_uuid=UUID,
        __slurm_condition=str(tmp_path / "mark"),
    )
    codes = []
    for uuid in (UUID, UUID + "9"):
        (tmp_path / "mark").write_text(f"# Written by gpubed.\n# cluster: {uuid}\n[Unit]\n")
        codes.append(subprocess.run(["sh", "-c", is_ours], check=False).returncode)
    assert codes == [0, 1]
