"""gpubed and Pulumi's plugin read the same files, also where HOME is not the account's."""

import os
import pwd
import subprocess
import sys
from types import SimpleNamespace

import pytest
import yaml

from gpubed.backends.openstack import cloud, clouds_file, credentials
from gpubed.core.errors import PrerequisiteMissing
from gpubed.core.paths import Project
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


@pytest.mark.process
def test_the_plugin_is_told_which_file_is_read(cluster, folder):
    said = run(cluster, folder, str(BIN / "gpubed"), "env", "lab")
    assert f"export OS_CLIENT_CONFIG_FILE={folder / 'clouds.yaml'}" in said


@pytest.mark.process
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


@pytest.mark.process
def test_variables_that_nothing_else_names_are_handed_on(tmp_path, folder):
    cluster = Cluster(tmp_path / "bare", "lab", backend=BACKENDS["openstack"], nodes=[{"count": 1}])
    (folder / "clouds.yaml").unlink()
    openrc = {"OS_AUTH_URL": "https://c.example/v3", "OS_USERNAME": "u", "OS_PASSWORD": "p"}
    said = run(cluster, folder, str(BIN / "gpubed"), "env", "lab", **openrc)
    assert "OS_" not in said


@pytest.mark.process
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


@pytest.mark.process
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
    (project.root / "secure.yaml").write_text(SECRETS)
    monkeypatch.setenv("OS_CLIENT_SECURE_FILE", str(project.root / "secure.yaml"))
    assert clouds_file.finding(project).ok


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
    "credential with a project": (
        clouds(mycloud={"auth_type": "v3applicationcredential", "auth": {**AUTH, **CREDENTIAL}}),
        "auth.project_name must be removed",
    ),
    "credential without its secret": (
        clouds(
            mycloud={
                "auth_type": "v3applicationcredential",
                "auth": {k: v for k, v in CREDENTIAL.items() if "secret" not in k},
            }
        ),
        "auth.application_credential_secret is missing",
    ),
    "auth_type": (clouds(mycloud={**auth(), "auth_type": "pasword"}), "did you mean 'password'?"),
    "project": (clouds(mycloud=auth(project_name=None)), "auth.project_name is missing"),
    "user": (clouds(mycloud=auth(username=None)), "auth.username is missing"),
    "secret": (clouds(mycloud=auth(password=None)), "auth.password is missing"),
    "domain": (
        clouds(mycloud=auth(project_domain_name=None)),
        "auth.project_domain_name is missing",
    ),
    "user's domain": (clouds(mycloud=auth(user_domain_name=None)), "auth.user_domain_name is mis"),
    "address": (clouds(mycloud=auth(auth_url=None)), "auth.auth_url is missing"),
    "no address": (clouds(mycloud=auth(auth_url="c.example")), "auth.auth_url must be a URL"),
    "v2": (clouds(mycloud=auth(auth_url="https://c.example/v2.0/")), "it must end with /v3"),
    "braces": (clouds(mycloud=auth(auth_url="https://{x}/v3")), "clouds.mycloud"),
    "yes": (clouds(mycloud=auth(password=True)), "auth.password must be a text"),
    "interface": (clouds(mycloud={**auth(), "interface": "publc"}), "interface is 'publc'"),
    "cacert": (clouds(mycloud={**auth(), "cacert": "/no/ca.pem"}), "cacert names /no/ca.pem"),
    "profile": (clouds(mycloud={**auth(), "profile": "ovhh"}), "profile is 'ovhh'"),
    "region": (clouds(mycloud={**auth(), "regions": ["a", "b"]}), "not a valid region"),
    "region of a number": (clouds(mycloud={**auth(), "region_name": 7}), "mycloud.region_name"),
    "auth is a list": (clouds(mycloud={"auth": ["a"]}), "clouds.mycloud.auth: must be a mapping"),
    "auth is a text": (clouds(mycloud={"auth": "a"}), "clouds.mycloud.auth: must be a mapping"),
    "no auth": ("clouds: {mycloud: {auth: }}", "clouds.mycloud.auth: must be a mapping"),
    "entry is nothing": ("clouds: {mycloud: }", "clouds.mycloud: must be a mapping"),
    "entry is a text": ("clouds: {mycloud: x}", "clouds.mycloud: must be a mapping"),
    "another entry": (clouds(mycluod=auth()), "no clouds.mycloud: did you mean 'mycluod'?"),
    "clouds is a list": ("clouds: [mycloud]", "line 1: clouds: must be a mapping"),
    "a list": ("- mycloud", "must be a mapping"),
    "a text": ("mycloud", "must be a mapping"),
    "empty": ("", "has no clouds.mycloud"),
    "no clouds": ("mycloud: {}", "has no clouds.mycloud"),
    "tabs": ("clouds:\n\tmycloud: {}\n", "line 2: a line begins with a tab"),
    "cut off": ("clouds: {mycloud: {auth: ", "opened and not closed"),
    "alias": ("clouds: {mycloud: {auth: {password: *s3cret}}}", "line 1: a value begins with"),
    "tag": ("clouds: {mycloud: !!python/name:os.system x}", "line 1: a value begins with * or !"),
    "binary": (b"clouds: \xff\n", "line 1: the file is not UTF-8 text"),
    "client": (clouds(mycloud=auth()) + "client: 5\n", "clouds.mycloud"),
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
@pytest.mark.parametrize("name", ["credential", "clouds is a list"])
@pytest.mark.parametrize("verb", ["doctor lab", "resources lab", "audit lab", "up lab -y"])
def test_every_verb_says_so(cluster, folder, name, verb):
    """STAND-IN: of Pulumi's CLI, only that it is on PATH."""
    content, says = WRONG[name]
    (folder / "clouds.yaml").write_text(content)
    pulumi = cluster.root / "bin" / "pulumi"
    pulumi.parent.mkdir()
    pulumi.write_text("#!/bin/sh\necho '[]'\n")
    pulumi.chmod(0o755)
    environment = {k: v for k, v in cluster.environment.items() if not k.startswith("OS_")}
    environment["PATH"] = f"{pulumi.parent}:{environment['PATH']}"
    ran = subprocess.run(
        [str(BIN / "gpubed"), *verb.split()],
        env={**environment, "HOME": str(folder.parents[1])},
        cwd=cluster.root,
        capture_output=True,
        text=True,
        check=False,
    )
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


def test_a_broken_file_of_secrets_is_named(alone, monkeypatch):
    alone.write_text(clouds(mycloud=auth()))
    secrets = alone.parent / "secure.yaml"
    secrets.write_text("clouds: {mycloud: {auth: p}}")
    monkeypatch.setenv("OS_CLIENT_SECURE_FILE", str(secrets))
    with pytest.raises(PrerequisiteMissing, match=r"clouds\.mycloud\.auth: must be") as error:
        cloud.connect("mycloud", None)
    assert str(secrets) in error.value.message


def test_a_stray_variable_beside_the_only_entry_is_ignored(alone, monkeypatch):
    alone.write_text(clouds(mycloud=auth()))
    monkeypatch.setenv("OS_USERNAME", "someone")
    connection = cloud.connect(None, None)
    assert connection.config.name == "mycloud"
    assert connection.config.config["auth"]["username"] == "u"
    assert "ignored: OS_USERNAME" in clouds_file.mixture(connection).message


def test_of_several_entries_one_has_to_be_named(alone):
    alone.write_text(clouds(a=auth(), b=auth()))
    with pytest.raises(PrerequisiteMissing, match="several entries: a, b") as error:
        cloud.connect(None, None)
    assert "backend.cloud" in str(error.value.hint)


def test_an_openrc_file_that_lacks_something_is_told_by_its_variable(alone, monkeypatch):
    monkeypatch.delenv("OS_CLIENT_CONFIG_FILE")
    monkeypatch.setattr(credentials.loader, "CONFIG_FILES", [])
    with pytest.raises(PrerequisiteMissing, match=r"no clouds.yaml in .* OS_AUTH_URL is not set"):
        cloud.connect(None, None)
    for key, value in AUTH.items():
        monkeypatch.setenv(f"OS_{key.upper()}", value)
    assert cloud.entry(cloud.connect(None, None)) is None
    monkeypatch.delenv("OS_PROJECT_NAME")
    cloud.connect.cache_clear()
    with pytest.raises(PrerequisiteMissing, match="OS_PROJECT_NAME is missing"):
        cloud.connect(None, None)


def test_a_variable_that_names_no_file_is_told(alone):
    with pytest.raises(PrerequisiteMissing, match=r"OS_CLIENT_CONFIG_FILE names .*clouds.yaml"):
        cloud.connect("mycloud", None)
