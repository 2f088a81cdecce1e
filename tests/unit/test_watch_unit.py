"""`gpubed watch --install`: a unit of the user's systemd, which is a STAND-IN here."""

import json
import os

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from typer.testing import CliRunner

from gpubed import cli
from gpubed.cluster import watch_unit
from gpubed.core.errors import PrerequisiteMissing
from gpubed.nodes import allocation
from gpubed.nodes.allocation import Hop
from support.watched import world

pytestmark = pytest.mark.process

__all__ = ["world"]


@pytest.fixture
def systemd(tmp_path, monkeypatch):
    """A systemd of the user that writes down what it is told; a STAND-IN, and so is loginctl."""
    folder, told = tmp_path / "bin", tmp_path / "told"
    folder.mkdir()
    for name in ("systemctl", "loginctl"):
        (folder / name).write_text(f'#!/bin/sh\necho "{name} $@" >> {told}\n')
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return told


def test_a_unit_runs_it_in_this_project(world, systemd, monkeypatch):
    monkeypatch.setenv("OS_PASSWORD", "hunter2")
    monkeypatch.setenv("OS_CLOUD", "50%")
    words = ["watch", "lab", "--every", "5 min", "--install"]
    done = CliRunner().invoke(cli.build(), words, standalone_mode=False)
    assert done.return_value == 0
    unit = watch_unit.file(world.cluster).read_text()
    root = world.cluster.project.root
    assert f"WorkingDirectory={root}\n" in unit
    assert f'Environment="GPUBED_ROOT={root}"\n' in unit
    assert 'Environment="OS_CLOUD=50%%"\n' in unit
    assert 'gpubed" "watch" "lab" "--every" "5 min" "--repairs" "5"\n' in unit
    assert "Restart=on-failure\n" in unit
    assert "hunter2" not in unit
    name = watch_unit.file(world.cluster).name
    assert f"systemctl --user enable --now {name}" in systemd.read_text()
    assert "loginctl enable-linger" in done.stderr


def test_a_repair_reaches_what_up_reaches(world, monkeypatch):
    """A node that it makes anew installs packages by the same ways; no password is written down."""
    ways = {
        "OS_CLIENT_CONFIG_FILE": "/etc/clouds@site.yaml",
        "REQUESTS_CA_BUNDLE": "/etc/ssl/site.pem",
        "https_proxy": "http://proxy.site:3128",
        "PIP_INDEX_URL": "https://mirror.site/simple",
    }
    for name, value in ways.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://bob:hunter2@mirror.site/simple")
    unit = watch_unit.text(world.cluster, [])
    for name, value in ways.items():
        assert f'Environment="{name}={value}"\n' in unit
    assert "hunter2" not in unit


def test_a_unit_is_removed_also_once_the_cluster_is_no_more(world, systemd):
    CliRunner().invoke(cli.build(), ["watch", "lab", "--install"], standalone_mode=False)
    world.cluster.spec.unlink()
    done = CliRunner().invoke(
        cli.build(), ["watch", "lab", "--remove", "--json"], standalone_mode=False
    )
    assert json.loads(done.stdout)["unit"] == str(watch_unit.file(world.cluster))
    assert not watch_unit.file(world.cluster).exists()
    assert "disable --now" in systemd.read_text()
    assert watch_unit.remove(world.cluster) is None


def test_where_no_systemd_answers_nothing_is_written(world, systemd):
    path = systemd.parent / "bin" / "systemctl"
    path.write_text("#!/bin/sh\necho 'Failed to connect to bus' >&2\nexit 1\n")
    done = CliRunner().invoke(cli.build(), ["watch", "lab", "--install"], standalone_mode=False)
    assert isinstance(done.exception, PrerequisiteMissing)
    assert "Failed to connect to bus" in done.exception.message
    assert not watch_unit.file(world.cluster).exists()


@pytest.fixture
def bastion(world, tmp_path):
    """A function that puts the nodes behind a bastion, which a key with such a passphrase opens."""

    def put(passphrase):
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH)
        locked = serialization.BestAvailableEncryption(passphrase) if passphrase else None
        key = ed25519.Ed25519PrivateKey.generate()
        path = tmp_path / "id_bastion"
        path.write_bytes(key.private_bytes(*form, locked or serialization.NoEncryption()))
        hop = Hop(address="gate", user="me", host_keys=("ssh-ed25519 AAAA",), identity=str(path))
        granted = allocation.load(world.cluster.allocation)
        nodes = [node.model_copy(update={"via": (hop,)}) for node in granted.nodes]
        changed = granted.model_copy(update={"nodes": tuple(nodes)})
        world.cluster.allocation.write_text(changed.model_dump_json())
        return str(path)

    return put


def install(monkeypatch, greet):
    """Install it where logins to nodes end in some way; they are STAND-INs."""
    monkeypatch.setattr(watch_unit.ssh, "greet", greet)
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    return CliRunner().invoke(cli.build(), ["watch", "lab", "--install"], standalone_mode=False)


def test_a_key_with_a_passphrase_is_asked_of_the_agent_that_is_there(
    world, systemd, bastion, monkeypatch
):
    key, greeted = bastion(b"secret"), []
    done = install(monkeypatch, lambda node, _: greeted.append(node.name))
    assert done.return_value == 0
    assert greeted == ["node-2"], "one login for each key"
    assert 'Environment="SSH_AUTH_SOCK=/run/agent"\n' in watch_unit.file(world.cluster).read_text()
    assert f"nodesarereachedwith{key}fromanSSHagent" in "".join(done.stderr.split())
