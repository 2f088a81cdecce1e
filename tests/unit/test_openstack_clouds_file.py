"""gpubed and Pulumi's plugin read the same files, also where HOME is not the account's."""

import os
import pwd
import subprocess
import sys
from types import SimpleNamespace

import pytest
import yaml

from gpubed.backends.openstack import cloud, clouds_file
from gpubed.core.errors import PrerequisiteMissing
from gpubed.core.paths import Project
from support.cluster import BIN, Cluster
from support.specs import BACKENDS

CLOUDS = """
clouds:
  mycloud:
    auth: {auth_url: 'https://c.example/v3', username: u, password: p, project_name: mine}
"""
OTHERS = {"OS_PROJECT_ID": "not mine", "OS_REGION_NAME": "elsewhere", "OS_INSECURE": "true"}
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


def run(cluster, folder, *words, **more):
    environment = {k: v for k, v in cluster.environment.items() if not k.startswith("OS_")}
    return subprocess.run(
        words,
        env={**environment, "HOME": str(folder.parents[1]), **more},
        cwd=cluster.root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_the_plugin_is_told_which_file_is_read(cluster, folder):
    said = run(cluster, folder, str(BIN / "gpubed"), "env", "lab")
    assert f"export OS_CLIENT_CONFIG_FILE={folder / 'clouds.yaml'}" in said


def test_the_plugin_gets_no_variables_of_another_project(cluster, folder):
    """openstacksdk leaves them alone beside an entry of clouds.yaml; the plugin does not."""
    said = run(cluster, folder, str(BIN / "gpubed"), "env", "lab", **OTHERS)
    assert {f"unset {name}" for name in OTHERS} <= set(said.splitlines())
    assert "export OS_CLOUD=mycloud" in said
    code = (
        "from gpubed.engines import stack; from gpubed.core.paths import Project;"
        "print(stack.environment(Project.find().cluster('lab')))"
    )
    said = run(cluster, folder, sys.executable, "-c", code, **OTHERS)
    for name in OTHERS:
        assert f"'{name}': ''" in said


def test_variables_that_nothing_else_names_are_handed_on(tmp_path, folder):
    cluster = Cluster(tmp_path / "bare", "lab", backend=BACKENDS["openstack"], nodes=[{"count": 1}])
    (folder / "clouds.yaml").unlink()
    openrc = {"OS_AUTH_URL": "https://c.example/v3", "OS_USERNAME": "u", "OS_PASSWORD": "p"}
    said = run(cluster, folder, str(BIN / "gpubed"), "env", "lab", **openrc)
    assert "OS_" not in said


def test_the_only_entry_is_named_to_the_plugin(tmp_path, folder):
    """It is the cloud for openstacksdk, and none for the plugin."""
    cluster = Cluster(tmp_path / "bare", "lab", backend=BACKENDS["openstack"], nodes=[{"count": 1}])
    assert "export OS_CLOUD=mycloud" in run(cluster, folder, str(BIN / "gpubed"), "env", "lab")


def test_a_mixture_is_refused_where_gpubed_starts_nothing(folder, monkeypatch):
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(folder / "clouds.yaml"))
    for name in OTHERS:
        monkeypatch.delenv(name, raising=False)
    cloud.connect.cache_clear()
    connection = cloud.connect("mycloud", None)
    clouds_file.require_apart(connection)
    monkeypatch.setenv("OS_PROJECT_ID", "not mine")
    assert "ignored: OS_PROJECT_ID" in clouds_file.mixture(connection).message
    with pytest.raises(PrerequisiteMissing, match="mix it with OS_PROJECT_ID") as error:
        clouds_file.require_apart(connection)
    assert "gpubed env" in str(error.value.hint)


@pytest.fixture
def entry(folder, monkeypatch):
    """Return a connection as an entry has it; none is made, since some logins need more."""
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(folder / "clouds.yaml"))
    monkeypatch.setattr(clouds_file, "_folders", lambda _: [folder])

    def entry(**written):
        (folder / "clouds.yaml").write_text(yaml.safe_dump({"clouds": {"mycloud": written}}))
        return SimpleNamespace(config=SimpleNamespace(name="mycloud", config=written))

    return entry


@pytest.mark.parametrize("login", [None, "password", "v3password", "v3applicationcredential"])
def test_ways_to_log_in_that_both_know(entry, login):
    clouds_file.require_login(entry(**({"auth_type": login} if login else {})), None)


@pytest.mark.parametrize("login", ["v3oidcpassword", "v3totp", "v3adfspassword"])
def test_ways_to_log_in_that_the_plugin_lacks(entry, login):
    with pytest.raises(PrerequisiteMissing, match=login) as error:
        clouds_file.require_login(entry(auth_type=login), None)
    assert "application credential" in str(error.value.hint)


def test_a_profile_that_only_openstacksdk_knows(entry, folder):
    connection = entry(profile="ovh")
    with pytest.raises(PrerequisiteMissing, match="the profile ovh"):
        clouds_file.require_login(connection, None)
    (folder / "clouds-public.yaml").write_text("public-clouds: {ovh: {}}")
    clouds_file.require_login(connection, None)


def test_secrets_that_the_plugin_would_not_find_are_named(cluster, folder, monkeypatch):
    monkeypatch.setenv("GPUBED_ROOT", str(cluster.root))
    secrets = folder / "secure.yaml"
    code = (
        "from gpubed.backends.openstack import clouds_file; from gpubed.core.paths import Project;"
        "print(clouds_file.finding(Project.find()))"
    )
    assert "ok=True" in run(cluster, folder, sys.executable, "-c", code)
    secrets.write_text(SECRETS)
    said = run(cluster, folder, sys.executable, "-c", code)
    assert "ok=False" in said
    assert str(secrets) in said
    assert f"{pwd.getpwuid(os.getuid()).pw_dir}/.config/openstack" in said


def test_beside_the_project_both_find_them(cluster, monkeypatch):
    project = Project(cluster.root)
    there = SimpleNamespace(
        config_filename=None, secure_config_filename=str(project.root / "secure.yaml")
    )
    monkeypatch.setattr(clouds_file.config, "OpenStackConfig", lambda: there)
    assert clouds_file.finding(project).ok
