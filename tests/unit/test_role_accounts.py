"""What an account on a node owns is no way to make root write, or read, elsewhere."""

import os
import re
import subprocess

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import init_plugin_loader
from ansible.template import Templar, trust_as_template

from gpubed.core.paths import assets

pytestmark = pytest.mark.process

ROLES = assets() / "roles"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE"


def script(name, *words):
    done = subprocess.run(
        ["sh", ROLES / "jupyterlab/files" / name, *map(str, words)],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another account: needs root")
def test_links_that_the_account_left_in_jupyterlabs_folder_go(tmp_path):
    shadow, folder = tmp_path / "shadow", tmp_path / "jupyterlab"
    shadow.write_text("root:secret")
    shadow.chmod(0o600)
    folder.mkdir()
    (folder / "launcher").symlink_to("/etc")
    (folder / "z").symlink_to(shadow)
    (folder / "cert.key").write_text("key")
    (folder / "cert.key").chmod(0o600)
    os.chown(folder / "cert.key", 65534, 65534)
    assert set(script("keep-from-account", folder, "nogroup")) == {
        str(folder / name) for name in ("launcher", "z", "cert.key")
    }
    key, group = (folder / "cert.key").stat(), (folder / "cert.key").group()
    assert (key.st_uid, group, key.st_mode & 0o777) == (0, "nogroup", 0o640)
    assert (shadow.stat().st_gid, shadow.stat().st_mode & 0o777) == (0, 0o600)
    assert [path.name for path in folder.iterdir()] == ["cert.key"]
    assert script("keep-from-account", folder, "nogroup") == []


@pytest.fixture
def placed(tmp_path):
    """Places the examples, and returns what was changed."""
    shipped, notebooks = tmp_path / "shipped", tmp_path / "notebooks"
    (shipped / "digits").mkdir(parents=True)
    notebooks.mkdir()
    for name in ("main.py", "digits.ipynb"):
        (shipped / "digits" / name).write_text("1")

    def placed():
        links = (notebooks / "job-runs", tmp_path / "runs")
        links += (notebooks / "campaign-reports", tmp_path / "reports")
        return len(script("place-examples", shipped, notebooks, *links))

    placed.shipped, placed.there = shipped / "digits", notebooks / "examples/digits"
    placed.notebooks = notebooks
    return placed


def test_examples_are_placed_once(placed):
    assert placed() == 6
    assert placed() == 0
    assert (placed.there / "main.py").read_text() == "1"
    for link, folder in (("job-runs", "runs"), ("campaign-reports", "reports")):
        assert (placed.notebooks / link).readlink() == placed.notebooks.parent / folder


def test_a_folder_of_a_users_is_left_where_a_link_would_be(placed):
    (placed.notebooks / "campaign-reports").mkdir()
    assert placed() == 5
    assert not (placed.notebooks / "campaign-reports").is_symlink()


def test_an_example_is_refreshed_unless_somebody_edited_it(placed):
    placed()
    (placed.there / "main.py").write_text("mine")
    for path in placed.shipped.iterdir():
        path.write_text("2")
    placed()
    assert (placed.there / "main.py").read_text() == "mine"
    assert (placed.there / "digits.ipynb").read_text() == "2"
    assert placed() == 0


def test_an_example_that_is_away_comes_back(placed):
    placed()
    (placed.there / "main.py").unlink()
    assert placed() == 1


def admitted(told):
    init_plugin_loader()
    text = (ROLES / "ssh_mesh/templates/authorized_keys.j2").read_text()
    node = {"name": "node-0", "control_address": "10.0.0.2", "experiment_address": None}
    values = {
        "ansible_managed": "by gpubed",
        "gpubed_nodes": [node],
        "hostvars": {"node-0": {"__ssh_mesh_public_key": {"stdout": told}}},
        "ssh_mesh_restrict_sources": True,
        "__ssh_mesh_other_keys": {"results": []},
        "__ssh_mesh_tag": "gpubed-role:a1",
    }
    return Templar(loader=DataLoader(), variables=values).template(trust_as_template(text))


def test_a_key_of_the_mesh_is_admitted():
    line = f'restrict,pty,from="10.0.0.2" {KEY} gpubed node-0 gpubed-role:a1'
    assert admitted(f"{KEY} gpubed node-0").splitlines() == [line]


@pytest.mark.parametrize(
    "told", [f"{KEY} x\n{KEY}B anybody, from anywhere", "root:$y$j9T$:20000:0:::\n"]
)
def test_what_the_account_wrote_as_its_key_adds_no_line_of_its_own(told):
    wanted = rf'restrict,pty,from="10.0.0.2" {KEY} gpubed node-0 gpubed-role:a1'
    assert all(re.fullmatch(wanted, line) for line in (admitted(told) or "").splitlines())
