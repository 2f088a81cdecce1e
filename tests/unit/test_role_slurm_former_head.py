"""Role slurm on a node that is the head no more: no controller, and the records stay."""

import pytest

from support.role_tasks import play
from support.slurm_owners import UUID, files, put

pytestmark = pytest.mark.process


@pytest.fixture
def former(tmp_path):
    """A function that runs the tasks on a node which is the head no more, and says what is left."""
    etc, mark = tmp_path / "etc", tmp_path / "gpubed/slurm/head"
    put(tmp_path, "mark", "etc/slurmdbd.conf", "etc/slurm.cnf", "gpubed/slurm/keys/ann")
    put(tmp_path, "lib/mysql/slurm_acct_db/db.opt", "lib/slurm/slurmctld/job_state")

    def run(*others):
        asked = 'case "$1" in show) for one; do case $one in *.service)'
        asked += " echo LoadState=loaded; echo ActiveState=active; echo ;; esac; done ;; esac"
        return play(
            tmp_path,
            "slurm",
            "former_head",
            programs={"systemctl": asked, "scancel": "", "squeue": ""},
            inventory_hostname="node-1",
            gpubed_head="node-0",
            gpubed_uuid=UUID,
            __slurm_condition=str(tmp_path / "mark"),
            __slurm_folder=str(mark.parent),
            __slurm_server=str(etc / "slurm.cnf"),
            __slurm_accounting=str(etc / "slurmdbd.conf"),
            __slurm_others_databases="".join(f"echo {name};" for name in others) or "true",
        )

    run.folder, run.mark = tmp_path, mark
    return run


@pytest.mark.parametrize("version", ["this", "a former one"])
def test_who_is_the_head_no_more_has_no_controller_and_keeps_the_records(former, version):
    """Two controllers would drive the same nodes; a former version left no mark of the head's."""
    if version == "this":
        former.mark.touch()
    done = former()
    assert done.code == 0, done.said
    stopped = [call for call in done.calls if " stop " in call or "disable" in call]
    assert {call.split()[-1] for call in stopped} == {
        *("slurmctld.service", "slurmdbd.service", "mariadb.service")
    }
    assert [call for call in done.calls if call.startswith("scancel")], "no job is left behind"
    assert files(former.folder / "etc") | files(former.mark.parent) == set()
    assert files(former.folder / "lib") == {"db.opt", "job_state"}
    assert "stay there, in /var/lib/mysql/slurm_acct_db" in " ".join(done.said.split())
    assert (former.folder / "mark").exists()
    again = former()
    assert "changed" not in again.tasks.values()
    assert not [call for call in again.calls if call.startswith("scancel")]


def test_a_database_server_that_others_use_goes_on_where_the_head_was(former):
    former.mark.touch()
    done = former("/var/lib/mysql/wiki")
    assert done.code == 0, done.said
    assert not [call for call in done.calls if "stop mariadb" in call or "disable mariadb" in call]
    assert any("restart mariadb" in call for call in done.calls)
