"""gpubed and Pulumi's plugin read the same files, also where HOME is not the account's."""

import os
import subprocess
import sys

import pytest
import yaml

from gpubed.backends.openstack import cloud
from gpubed.core.errors import PrerequisiteMissing
from support.cluster import BIN, Cluster
from support.specs import BACKENDS

CLOUDS = """
clouds:
  mycloud:
    auth:
      auth_url: https://c.example/v3
      username: u
      password: p
      project_name: mine
      user_domain_name: Default
      project_domain_name: Default
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


def run(cluster, folder, *words, check=True, **more):
    environment = {k: v for k, v in cluster.environment.items() if not k.startswith("OS_")}
    return subprocess.run(
        words,
        env={**environment, "HOME": str(folder.parents[1]), **more},
        cwd=cluster.root,
        capture_output=True,
        text=True,
        check=check,
    )


def env(cluster, folder, **more):
    return run(cluster, folder, str(BIN / "gpubed"), "env", "lab", **more).stdout


@pytest.mark.process
def test_the_plugin_is_told_file_and_entry_and_gets_no_other_variables(cluster, folder):
    """openstacksdk ignores these beside an entry of clouds.yaml; the plugin does not."""
    said = env(cluster, folder, **OTHERS)
    assert f"export OS_CLIENT_CONFIG_FILE={folder / 'clouds.yaml'}" in said
    assert {f"unset {name}" for name in OTHERS} <= set(said.splitlines())
    assert "export OS_CLOUD=mycloud" in said
    code = (
        "from gpubed.engines import stack; from gpubed.core.paths import Project;"
        "print(stack.environment(Project.find().cluster('lab')))"
    )
    said = run(cluster, folder, sys.executable, "-c", code, **OTHERS).stdout
    for name in OTHERS:
        assert f"'{name}': ''" in said


@pytest.mark.process
def test_the_only_entry_is_named_to_the_plugin_and_variables_are_handed_on(tmp_path, folder):
    """The only entry is the cloud for openstacksdk, and none for the plugin."""
    cluster = Cluster(tmp_path / "bare", "lab", backend=BACKENDS["openstack"], nodes=[{"count": 1}])
    assert "export OS_CLOUD=mycloud" in env(cluster, folder)
    (folder / "clouds.yaml").unlink()
    openrc = {f"OS_{key.upper()}": value for key, value in AUTH.items()}
    assert "OS_" not in env(cluster, folder, **openrc)


AUTH = {
    "auth_url": "https://c.example/v3",
    "username": "u",
    "password": "p",
    "project_name": "mine",
    "user_domain_name": "Default",
    "project_domain_name": "Default",
}
CREDENTIAL = {
    "auth_url": "https://c.example/v3",
    "application_credential_id": "i",
    "application_credential_secret": "s",
}


def auth(**changed):
    """Return an entry whose `auth` differs from a right one; None takes a key away."""
    return {"auth": {key: value for key, value in {**AUTH, **changed}.items() if value is not None}}


def clouds(**entries):
    return yaml.safe_dump({"clouds": entries})


WRONG = {
    "credential": (clouds(mycloud={"auth": CREDENTIAL}), "auth_type must be v3applicationcred"),
    "credential without its secret": (
        clouds(
            mycloud={
                "auth_type": "v3applicationcredential",
                "auth": {k: v for k, v in CREDENTIAL.items() if "secret" not in k},
            }
        ),
        "auth.application_credential_secret is missing",
    ),
    "another login": (clouds(mycloud={**auth(), "auth_type": "v3totp"}), "plugin cannot log in"),
    "secret": (clouds(mycloud=auth(password=None)), "auth.password is missing"),
    "address": (clouds(mycloud=auth(auth_url=None)), "auth.auth_url is missing"),
    "no address": (clouds(mycloud=auth(auth_url="c.example")), "auth.auth_url must be a URL"),
    "yes": (clouds(mycloud=auth(password=True)), "auth.password must be a text"),
    "region": (clouds(mycloud={**auth(), "regions": ["a", "b"]}), "not a valid region"),
    "no auth": ("clouds: {mycloud: {auth: }}", "clouds.mycloud.auth: must be a mapping"),
    "entry is nothing": ("clouds: {mycloud: }", "clouds.mycloud: must be a mapping"),
    "another entry": (clouds(mycluod=auth()), "no clouds.mycloud: did you mean 'mycluod'?"),
    "empty": ("", "has no clouds.mycloud"),
    "cut off": ("clouds: {mycloud: {auth: ", "opened and not closed"),
    "alias": ("clouds: {mycloud: {auth: {password: *s3cret}}}", "line 1: a value begins with"),
    "binary": (b"clouds: \xff\n", "line 1: the file is not UTF-8 text"),
}


@pytest.fixture
def alone(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("OS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(tmp_path / "clouds.yaml"))
    cloud.connect.cache_clear()
    return tmp_path / "clouds.yaml"


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_one_sentence_with_file_and_key(alone, name):
    content, says = WRONG[name]
    alone.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(PrerequisiteMissing) as error:
        cloud.connect("mycloud", "c" if name == "region" else None)
    assert str(alone) in error.value.message
    assert says in error.value.message
    assert "\n" not in error.value.message
    assert error.value.hint


@pytest.mark.process
def test_a_verb_says_so(cluster, folder):
    """STAND-IN: of Pulumi's CLI, only that it is on PATH."""
    content, says = WRONG["credential"]
    (folder / "clouds.yaml").write_text(content)
    pulumi = cluster.root / "bin" / "pulumi"
    pulumi.parent.mkdir()
    pulumi.write_text("#!/bin/sh\necho '[]'\n")
    pulumi.chmod(0o755)
    path = f"{pulumi.parent}:{cluster.environment['PATH']}"
    gpubed = [str(BIN / "gpubed"), "up", "lab", "-y"]
    ran = run(cluster, folder, *gpubed, check=False, PATH=path)
    said = " ".join((ran.stdout + ran.stderr).split())
    assert "Traceback" not in said
    assert f"{folder}/clouds.yaml" in said
    assert says in said
    assert ran.returncode == 3


def test_a_right_file_is_used(alone, monkeypatch):
    alone.write_text(clouds(mycloud=auth(), other=auth()))
    assert cloud.connect("mycloud", None).config.name == "mycloud"
    cloud.connect.cache_clear()
    alone.write_text(
        "common: &common {auth_url: https://c.example/v3}\nclouds: {mycloud: {auth: {<<: *common}}}"
    )
    with pytest.raises(PrerequisiteMissing, match=r"auth\.username is missing"):
        cloud.connect("mycloud", None)
    alone.write_text(clouds(mycloud=auth(password=None), other="x"))
    (alone.parent / "secure.yaml").write_text(SECRETS)
    monkeypatch.setenv("OS_CLIENT_SECURE_FILE", str(alone.parent / "secure.yaml"))
    cloud.connect.cache_clear()
    assert cloud.connect("mycloud", None).config.config["auth"]["password"] == "p"


def test_of_several_entries_one_has_to_be_named(alone):
    alone.write_text(clouds(a=auth(), b=auth()))
    with pytest.raises(PrerequisiteMissing, match="several entries: a, b") as error:
        cloud.connect(None, None)
    assert "backend.cloud" in str(error.value.hint)


def test_an_openrc_file_that_lacks_something_is_told_by_its_variable(alone, monkeypatch):
    monkeypatch.delenv("OS_CLIENT_CONFIG_FILE")
    monkeypatch.setattr(cloud, "_PLACES", ([], []))
    with pytest.raises(PrerequisiteMissing, match=r"clouds.yaml .* and OS_AUTH_URL is not set"):
        cloud.connect(None, None)
    for key, value in AUTH.items():
        monkeypatch.setenv(f"OS_{key.upper()}", value)
    assert cloud.entry(cloud.connect(None, None)) is None
    monkeypatch.delenv("OS_PROJECT_NAME")
    cloud.connect.cache_clear()
    with pytest.raises(PrerequisiteMissing, match="OS_PROJECT_NAME is missing"):
        cloud.connect(None, None)
