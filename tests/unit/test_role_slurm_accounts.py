"""Accounts of role slurm: its own come and go, its owner's only join and leave the group."""

import pytest

from support.role_tasks import play
from support.slurm_owners import AS_ROOT, PEOPLE, getent

pytestmark = pytest.mark.process


def leaves(folder, name):
    return play(
        folder,
        "slurm",
        "user_absent",
        programs=dict.fromkeys(("scancel", "gpasswd", "userdel"), "") | {"pkill": "exit 1"},
        inventory_hostname="node-0",
        gpubed_head="node-0",
        slurm_home_root="/shared/home",
        __slurm_noted={"rc": 1},
        __slurm_people={"stdout_lines": list(PEOPLE.values())},
        __slurm_user=name,
    )


def test_an_account_of_the_owners_only_leaves_the_group(tmp_path):
    done = leaves(tmp_path, "gpubed-bob")
    assert done.code == 0, done.said
    assert done.calls == ["scancel --user=gpubed-bob", "gpasswd --delete gpubed-bob researchers"]


def test_an_account_that_the_role_made_ends_with_all_that_runs_for_it(tmp_path):
    done = leaves(tmp_path, "gpubed-ann")
    assert done.code == 0, done.said
    assert done.calls == ["scancel --user=gpubed-ann", "pkill --signal KILL --euid gpubed-ann"]
    assert "Remove the user" in done.tasks


@AS_ROOT
def test_accounts_of_the_owners_only_join_the_group(tmp_path):
    """Whose account the role made and who is not in the specification any more, goes."""
    tools = ("groupadd", "groupmod", "useradd", "usermod", "userdel", "gpasswd", "pkill", "scancel")
    done = play(
        tmp_path,
        "slurm",
        "users",
        programs=dict.fromkeys(tools, "") | {"getent": getent("gpubed-ann")},
        inventory_hostname="node-1",
        gpubed_head="node-0",
        slurm_home_root="/shared/home",
        slurm_users=[{"name": "gpubed-bob", "uid": 1005}],
        __slurm_note=str(tmp_path / "slurm/accounts"),
    )
    assert done.code == 0, done.said
    assert [call for call in done.calls if call.split()[0] in tools] == [
        "groupadd -r researchers",
        "pkill --signal KILL --euid gpubed-ann",
        "gpasswd --add gpubed-bob researchers",
    ]
    assert (tmp_path / "slurm/accounts").read_text() == ""
