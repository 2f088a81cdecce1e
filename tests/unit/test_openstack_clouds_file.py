"""gpubed and Pulumi's plugin read the same files, also where HOME is not the account's."""

import os
import pwd
import subprocess
import sys
from types import SimpleNamespace

import pytest

from gpubed.backends.openstack import clouds_file
from gpubed.paths import Project
from support.cluster import BIN, Cluster
from support.specs import BACKENDS

CLOUDS = "clouds: {mycloud: {auth: {auth_url: 'https://c.example/v3'}}}\n"
SECRETS = "clouds: {mycloud: {auth: {password: p}}}\n"


@pytest.fixture
def cluster(tmp_path):
    backend = {**BACKENDS["openstack"], "cloud": "mycloud"}
    return Cluster(tmp_path / "project", "lab", backend=backend, nodes=[{"count": 1}])


@pytest.fixture
def folder(tmp_path):
    """The folder of clouds.yaml below a HOME that is not the account's."""
    folder = tmp_path / "home" / ".config" / "openstack"
    folder.mkdir(parents=True)
    (folder / "clouds.yaml").write_text(CLOUDS)
    return folder


def run(cluster, folder, *words):
    environment = {k: v for k, v in cluster.environment.items() if not k.startswith("OS_")}
    return subprocess.run(
        words,
        env={**environment, "HOME": str(folder.parents[1])},
        cwd=cluster.root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_the_plugin_is_told_which_file_is_read(cluster, folder):
    said = run(cluster, folder, str(BIN / "gpubed"), "env", "lab")
    assert f"export OS_CLIENT_CONFIG_FILE={folder / 'clouds.yaml'}" in said


def test_secrets_that_the_plugin_would_not_find_are_named(cluster, folder, monkeypatch):
    monkeypatch.setenv("GPUBED_ROOT", str(cluster.root))
    secrets = folder / "secure.yaml"
    code = "from gpubed.backends.openstack import clouds_file as c; print(c.finding())"
    assert "ok=True" in run(cluster, folder, sys.executable, "-c", code)
    secrets.write_text(SECRETS)
    said = run(cluster, folder, sys.executable, "-c", code)
    assert "ok=False" in said
    assert str(secrets) in said
    assert f"{pwd.getpwuid(os.getuid()).pw_dir}/.config/openstack" in said


def test_beside_the_project_both_find_them(cluster, monkeypatch):
    monkeypatch.setenv("GPUBED_ROOT", str(cluster.root))
    there = SimpleNamespace(
        config_filename=None, secure_config_filename=str(Project.find().root / "secure.yaml")
    )
    monkeypatch.setattr(clouds_file.config, "OpenStackConfig", lambda: there)
    assert clouds_file.finding().ok
