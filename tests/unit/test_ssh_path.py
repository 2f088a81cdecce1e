"""Projects below any folder: OpenSSH and Ansible find the files there; real ones, no node."""

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from gpubed.configuration import configure, inventory
from gpubed.core.errors import UsageError
from gpubed.core.paths import Project
from gpubed.core.text import ssh_path
from gpubed.nodes.allocation import Cluster
from support.samples import sample_allocation, sample_plan

pytestmark = pytest.mark.process

FOLDERS = ["my project 100% ü", "it's $1, %h and \\", "-F"]


@pytest.fixture(params=FOLDERS)
def cluster(tmp_path, request):
    """A cluster whose files are rendered below such a folder."""
    paths = Project(tmp_path / request.param).cluster("lab")
    paths.inventory.mkdir(parents=True)
    plan = sample_plan()
    inventory.render(Cluster(paths, plan, sample_allocation(plan)))
    return paths


def test_openssh_reads_paths_as_they_are(cluster):
    done = subprocess.run(
        ["ssh", "-G", "-F", cluster.ssh_config, "node-1"],
        capture_output=True,
        text=True,
        check=True,
    )
    # `-G` prints words as they were read, and expands them only to connect.
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    assert said["userknownhostsfile"].replace("%%", "%") == str(cluster.known_hosts)
    assert said["identityfile"].replace("%%", "%") == str(cluster.private_key)


def test_ansible_hands_on_the_whole_path(cluster):
    """Ansible splits what it gives to ssh as a shell does."""
    shown = "msg={{ ansible_ssh_common_args }}"
    done = subprocess.run(
        ["ansible", "node-1", configure._inventory(cluster), "-m", "debug", "-a", shown],
        cwd=cluster.project.root,
        env={**os.environ, **configure.environment(), "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"},
        capture_output=True,
        text=True,
        check=True,
    )
    said = json.loads("{" + done.stdout.partition("{")[2])["msg"]
    option, path = shlex.split(said)
    assert option == "-F"
    assert Path(path).samefile(cluster.ssh_config)


@pytest.mark.parametrize("path", ["/a/${X}/b", "/a/$HOME", "/a\nProxyCommand x"])
def test_what_openssh_cannot_be_told_is_refused(path):
    with pytest.raises(UsageError, match="which OpenSSH and Ansible would expand"):
        ssh_path(path)


def test_openssh_finds_the_host_keys(cluster):
    """It expands `%` in the path only once it connects: to no sshd, but through a command."""
    config = cluster.ssh_config.read_text() + "  ProxyCommand cat /dev/null\n"
    cluster.ssh_config.write_text(config)
    done = subprocess.run(
        ["ssh", "-v", "-F", cluster.ssh_config, "node-1", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "identity file" in done.stderr
    assert "%%" not in done.stderr
    assert "percent_expand" not in done.stderr
