"""Where accounts of nodes write, root makes nothing behind their links."""

import getpass
import re

import pytest
import yaml

from gpubed.configuration import roles
from gpubed.core.paths import assets
from support import role_reads, role_tasks


@pytest.fixture
def folders(tmp_path):
    """Make the folders below one that earlier versions made, as the role does."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1775)

    def make():
        return shared, role_tasks.play(
            tmp_path,
            "shared_storage",
            "folders",
            gpubed_user=getpass.getuser(),
            gpubed_head="node-0",
            shared_storage_path=str(shared),
            shared_storage_provider="nfs",
        )

    return make


@pytest.mark.process
def test_only_the_clusters_user_writes_in_the_shared_folder(folders):
    """His group may be that of all who are in a project; earlier versions let it write."""
    shared, played = folders()
    assert played.code == 0, played.said
    assert shared.stat().st_mode & 0o7777 == 0o755
    assert (shared / "runs").is_dir()


@pytest.mark.process
def test_no_other_account_sees_runs_and_reports(folders):
    """Nor those of a former version, whose folders everybody could list."""
    shared = folders()[0]
    (shared / "runs").chmod(0o755)
    (shared / "runs/20300101-digits").mkdir()
    _, played = folders()
    assert played.code == 0, played.said
    for name, mode in (("runs", 0o750), ("reports", 0o750), ("datasets", 0o755), ("env", 0o755)):
        assert (shared / name).stat().st_mode & 0o777 == mode


@pytest.mark.process
def test_a_link_that_was_put_there_is_refused(folders, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (tmp_path / "shared/env").symlink_to(elsewhere)
    _, played = folders()
    assert played.code != 0
    assert "already exists as a link" in " ".join(played.said.split())
    assert elsewhere.stat().st_mode & 0o7777 == 0o700


@pytest.mark.parametrize("role", roles.names())
def test_no_role_follows_a_link_there(role):
    shared = set(role_reads.SHARED) | {"__horovod_secrets", "__python_env_path"}
    below = re.compile(rf"\b({'|'.join(shared)})\b")
    follows = [
        task["name"]
        for path in (assets() / "roles" / role / "tasks").glob("*.yml")
        for task in _tasks(yaml.safe_load(path.read_text()))
        for made in [task.get("ansible.builtin.file", {})]
        if made.get("state") == "directory"
        and below.search(f"{made['path']} {task.get('loop')}")
        and made["path"] != "{{ shared_storage_path }}"
        and made.get("follow", True) is True
        and "become_user" not in task
    ]
    assert not follows


def _tasks(content):
    """Yield tasks, but those that the cluster's user himself does."""
    for task in content or []:
        yield task
        if "become_user" not in task:
            yield from _tasks(task.get("block"))
