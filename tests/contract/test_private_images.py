"""Images of a registry that wants a login: a real registry, Docker and `gpubed-image`.

The head is this machine, and STAND-IN for SSH is a local shell.
"""

import os
import shlex
import shutil
import socket
import subprocess
import time
import uuid
from pathlib import Path

import jinja2
import pytest

from gpubed.core.errors import GpubedError, PrerequisiteMissing
from gpubed.core.paths import Project
from gpubed.jobs import images
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.ssh import CommandResult
from support.cluster import ROOT
from support.samples import sample_allocation, sample_plan

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(
        not (shutil.which("docker-registry") and shutil.which("htpasswd")),
        reason="apt-get install docker-registry apache2-utils: no registry is here",
    ),
]
PASSWORD = "s3cret-of-the-test"
_REGISTRY = """version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}/data}}}}
http: {{addr: "{address}"}}
auth: {{htpasswd: {{realm: test, path: {folder}/htpasswd}}}}
"""


def docker(*words, **options):
    return subprocess.run(["docker", *words], check=True, capture_output=True, **options)


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """The address of a registry that knows the user `me`."""
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        pytest.skip("no Docker daemon answers")
    folder = tmp_path_factory.mktemp("registry")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    words = ["htpasswd", "-iBc", str(folder / "htpasswd"), "me"]
    subprocess.run(words, input=PASSWORD, text=True, check=True)
    (folder / "config.yml").write_text(_REGISTRY.format(folder=folder, address=address))
    with (folder / "log").open("w") as log:
        served = subprocess.Popen(
            ["docker-registry", "serve", str(folder / "config.yml")], stdout=log, stderr=log
        )
    try:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", int(address.split(":")[1]))) == 0:
                    break
            time.sleep(0.1)
        yield address
    finally:
        served.kill()
        served.wait()


@pytest.fixture(scope="module")
def private(registry, tmp_path_factory):
    """An image that only the registry has."""
    name, config = f"{registry}/team/box:{uuid.uuid4().hex[:8]}", tmp_path_factory.mktemp("login")
    empty = subprocess.run(["tar", "-cf-", "-T/dev/null"], check=True, capture_output=True).stdout
    docker("import", "-", name, input=empty)
    login = ["--config", str(config), "login", "--username", "me", "--password-stdin", registry]
    docker(*login, input=PASSWORD.encode())
    docker("--config", str(config), "push", name)
    docker("rmi", name)
    yield name
    subprocess.run(["docker", "rmi", name], check=False, capture_output=True)


class Head:
    """This machine with the role's real program; calls of Docker are written down."""

    folder: Path

    def __init__(self, *_):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def run(self, command, *args, check=True, stdin="", **_):
        line = command % tuple(shlex.quote(str(arg)) for arg in args) if args else command
        done = subprocess.run(
            ["sh", "-c", line],
            env={**os.environ, "PATH": f"{self.folder}{os.pathsep}{os.environ['PATH']}"},
            input=stdin,
            capture_output=True,
            text=True,
            check=check,
        )
        return CommandResult(done.stdout, done.stderr, done.returncode, 0.0)


@pytest.fixture
def head(tmp_path, monkeypatch):
    Head.folder = tmp_path / "bin"
    Head.folder.mkdir()
    text = (ROOT / "roles/docker/templates/gpubed-image.j2").read_text()
    script = jinja2.Template(text).render(docker_shared=tmp_path, ansible_managed="test")
    real = shutil.which("docker")
    told = f'#!/bin/sh\n{{ env; echo "$*"; }} >>{tmp_path}/called\nexec {real} "$@"\n'
    for name, content in (("gpubed-image", script), ("docker", told)):
        (Head.folder / name).write_text(content)
        (Head.folder / name).chmod(0o755)
    monkeypatch.setattr(images, "SSH", Head)
    return tmp_path


def cluster(folder, **registries):
    plan = sample_plan(services={"docker": {"registries": registries}}, nodes=[{"count": 1}])
    return Cluster(Project(folder).cluster("lab"), plan, sample_allocation(plan))


def login(folder, password=PASSWORD, mode=0o600):
    file = folder / "password"
    file.write_text(f"{password}\n")
    file.chmod(mode)
    return {"user": "me", "password_file": str(file)}


def everything(folder):
    """Return the content of all files below a folder, Docker's own archives left out."""
    files = [one for one in folder.rglob("*") if one.is_file() and one.name != "password"]
    return b"".join(one.read_bytes() for one in files)


def test_an_image_is_pulled_with_the_login_which_no_node_keeps(head, registry, private):
    found = images.require(cluster(head, **{registry: login(head)}), private)
    assert found.startswith("sha256:")
    assert list((head / "images").glob("*.tar")), "kept for all nodes"
    assert "login --username me --password-stdin" in (head / "called").read_text()
    assert PASSWORD.encode() not in everything(head), "in no argument, variable or file"
    assert not list(Path("/dev/shm").glob("*/config.json"))
    docker("rmi", private)


@pytest.mark.parametrize(
    ("password", "words", "fix"),
    [
        ("wrong", "{registry} refuses me, or me may not have {image}", "the password in"),
        (None, "the head cannot pull {image}", "services.docker.registries.{registry}: {{user"),
    ],
    ids=["wrong password", "no login"],
)
def test_a_refusal_says_which_key_is_wrong(head, registry, private, password, words, fix):
    logins = {registry: login(head, password)} if password else {}
    with pytest.raises(GpubedError) as refused:
        images.require(cluster(head, **logins), private)
    assert words.format(registry=registry, image=private) in refused.value.message
    assert fix.format(registry=registry) in refused.value.hint
    assert not password or password not in refused.value.message
    assert b"auths" not in everything(head)


def test_a_registry_that_does_not_answer_is_named(head):
    nowhere = "registry.invalid/team/box:1"
    with pytest.raises(GpubedError, match=f"the head cannot pull {nowhere}") as refused:
        images.require(cluster(head, **{"registry.invalid": login(head)}), nowhere)
    assert "whether the head reaches registry.invalid" in refused.value.hint


def test_a_head_of_a_former_version_is_brought_up_first(head):
    (head / "bin/gpubed-image").write_text(
        "#!/bin/sh\necho 'usage: gpubed-image keep' >&2\nexit 2\n"
    )
    with pytest.raises(GpubedError, match="of a former version") as refused:
        images.require(cluster(head, **{"registry.invalid": login(head)}), "registry.invalid/box")
    assert refused.value.hint == "gpubed up lab"


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (lambda file: file.chmod(0o644), "can be read by others"),
        (lambda file: file.unlink(), "cannot be read: No such file"),
    ],
    ids=["readable by others", "missing"],
)
def test_a_password_that_is_not_private_or_missing_is_not_used(
    head, registry, private, broken, words
):
    wanted = cluster(head, **{registry: login(head)})
    broken(head / "password")
    with pytest.raises(PrerequisiteMissing, match=words):
        images.require(wanted, private)
    assert "login" not in (head / "called").read_text()
