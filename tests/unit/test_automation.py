"""What the CLI says, in our words. STAND-IN: a script that only fails; the CLI is in tests/live."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pulumi import automation as api

from gpubed.core.errors import GpubedError, PrerequisiteMissing
from gpubed.engines import automation

PLUGIN = """1 error occurred:
\t* creating urn:pulumi:vw::gpubed::openstack:compute/instance:Instance::node-0: 1 error occurred:
\t* Error creating OpenStack server: Quota exceeded for cores"""
TRACEBACK = """Traceback (most recent call last):
  File "/srv/provider.py", line 3, in create
    raise Refused(message)
          ^^^^^^^
gpubed.core.errors.Refused: there is no flavor 'huge'
  there is no image 'old'
  hint: gpubed doctor CLUSTER"""


def diagnosed(*messages, severity="error"):
    """Return what comes of a failed command whose diagnostics were these."""
    run = automation._Run(lambda _: None, True)
    for message in messages:
        event = api.DiagnosticEvent(message, "red", severity)
        run.handle(api.EngineEvent(0, 0, diagnostic_event=event))
    with pytest.raises(GpubedError) as caught, run.translated():
        raise api.errors.CommandError(api.CommandResult(stdout="", stderr="error: no", code=255))
    return caught.value


@pytest.mark.parametrize(
    ("messages", "severity", "told"),
    [
        ([f"{PLUGIN}\n\n", "preview failed"], "error", PLUGIN),
        ([PLUGIN, PLUGIN], "error", PLUGIN),
        ([TRACEBACK, "update failed"], "error", TRACEBACK[TRACEBACK.index("gpubed.core") :]),
        (["deprecated"], "warning", "no"),
    ],
    ids=["many lines", "told twice", "a traceback", "a warning"],
)
def test_an_error_is_told_once_and_whole_without_its_traceback(messages, severity, told):
    assert diagnosed(*messages, severity=severity).message == told


def test_a_program_that_a_signal_ended_is_told_with_what_to_look_at():
    """Pulumi says only `-1`; a server that failed is the reason itself."""
    ended = "an unhandled error occurred: program exited with non-zero exit code: -1"
    told = diagnosed(ended, "update failed")
    assert "a signal ended the cluster's Pulumi program" in told.message
    assert "dmesg" in told.hint
    assert diagnosed(PLUGIN, ended).message == f"{PLUGIN}\n{ended}"


@pytest.fixture
def cli(tmp_path, monkeypatch):
    """Put a CLI on PATH that fails with a text."""

    def install(text, version="v3.260.0"):
        path = tmp_path / "bin" / "pulumi"
        path.parent.mkdir()
        path.write_text(f'#!/bin/sh\n[ "$1" = version ] && exec echo {version}\nexec >&2\n{text}\n')
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
        (tmp_path / "Pulumi.yaml").write_text("name: x\nruntime: python\n")
        return tmp_path

    return install


@pytest.mark.process
def test_another_passphrase_leads_to_the_file_that_has_it(cli):
    """As after `pulumi stack change-secrets-provider passphrase`."""
    root = cli("echo 'error: getting secrets manager: incorrect passphrase'; exit 255")
    with pytest.raises(GpubedError) as caught:
        automation.operate("preview", "lab", root, {}, lambda _: None)
    assert "incorrect passphrase" in caught.value.message
    assert ".gpubed/pulumi/passphrase" in caught.value.hint
    assert "change-secrets-provider" in caught.value.hint


@pytest.mark.process
@pytest.mark.parametrize("version", ["v1.0.0", "v99.0.0"])
def test_a_cli_that_does_not_go_with_the_sdk_is_refused_by_name(cli, version):
    """Too old, built by hand without a version, of another age."""
    root = cli("exit 1", version)
    with pytest.raises(PrerequisiteMissing) as caught:
        automation.operate("preview", "lab", root, {}, lambda _: None)
    assert str(root / "bin" / "pulumi") in caught.value.message
    assert "gpubed doctor" in caught.value.hint


@pytest.mark.process
def test_a_silent_cli_is_ended_and_the_way_on_is_named(cli, monkeypatch):
    """As where a cloud takes the plugin's connection, and never answers."""
    monkeypatch.setattr(automation, "SILENCE_S", 5.0)
    monkeypatch.setattr(automation, "REMARK_S", 0.3)
    root, heard, began = cli("exec sleep 40"), [], time.monotonic()
    with pytest.raises(GpubedError) as caught:
        automation.operate("preview", "lab", root, {}, heard.append)
    assert time.monotonic() - began < 30
    assert "silent" in caught.value.message
    assert "run the same command again" in caught.value.hint
    assert any("no answer for" in event.message for event in heard), "it was told meanwhile"


def test_a_changed_configuration_alone_is_no_change_as_with_the_embedded_engine():
    """After `pulumi config set` the CLI updates its record of it, the default provider."""
    heard = []
    run = automation._Run(heard.append, True)
    type_ = "pulumi:providers:pulumi-python"
    step = api.StepEventMetadata(
        api.OpType.UPDATE, f"urn:pulumi:lab::gpubed::{type_}::default", type_, ""
    )
    pre = api.ResourcePreEvent(step)
    run.handle(api.EngineEvent(0, 0, resource_pre_event=pre))
    assert heard == run.steps == []


@pytest.fixture
def own_settings(tmp_path, monkeypatch):
    """A shell of somebody who uses Pulumi for other things, too; returns what runs gpubed in it.

    STAND-IN: a CLI that writes down its environment, makes a stack and fails.
    """
    seen, fake = tmp_path / "seen", tmp_path / "bin" / "pulumi"
    kept = tmp_path / ".gpubed" / "pulumi"
    state = kept / ".pulumi" / "stacks" / "gpubed" / "lab.json"
    config = kept / "config" / "Pulumi.lab.yaml"
    fake.parent.mkdir()
    fake.write_text(
        f'#!/bin/sh\n[ "$1" = version ] && exec echo v3.260.0\nenv > {seen}\n'
        f"mkdir -p {state.parent} {config.parent} && touch {state} {config}\n"
        "echo 'error: incorrect passphrase' >&2\nexit 255\n"
    )
    fake.chmod(0o755)
    spec = tmp_path / "inventories" / "lab" / "cluster.yml"
    spec.parent.mkdir(parents=True)
    spec.write_text(
        "version: 1\nbackend: {type: static, user: me, hosts: {node: [{address: 198.51.100.1}]}}\n"
        "nodes: [{name: node, count: 1}]\n"
    )
    environment = {
        **os.environ,
        "PATH": f"{fake.parent}{os.pathsep}{os.environ['PATH']}",
        "GPUBED_ROOT": str(tmp_path),
        "PULUMI_CONFIG_PASSPHRASE": "mine",
        "PULUMI_CONFIG_PASSPHRASE_FILE": "/dev/null",
        "PULUMI_BACKEND_URL": "s3://mine",
        "PULUMI_STACK": "prod",
        "PULUMI_ACCESS_TOKEN": "mine",
        "PULUMI_DIY_BACKEND_GZIP": "true",
        "PULUMI_OPTION_REFRESH": "true",
        "PULUMI_HOME": "/plugins",
    }

    def run(*words):
        done = subprocess.run(
            [Path(sys.executable).with_name("gpubed"), *words],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        lines = seen.read_text().splitlines() if seen.exists() else []
        return done, dict(line.split("=", 1) for line in lines if line.startswith("PULUMI_"))

    return run


@pytest.mark.process
def test_the_cli_does_not_see_the_users_own_settings(own_settings, tmp_path):
    """A new stack was sealed with the user's passphrase, and nothing else opened it."""
    done, seen = own_settings("plan", "lab", "--engine", "cli")
    assert seen, done.stderr
    state = tmp_path / ".gpubed" / "pulumi"
    assert {name: seen.get(name) for name in ("PULUMI_BACKEND_URL", "PULUMI_HOME")} == {
        "PULUMI_BACKEND_URL": f"file://{state}",
        "PULUMI_HOME": "/plugins",
    }
    assert seen["PULUMI_CONFIG_PASSPHRASE_FILE"] == str(state / "passphrase")
    assert not {
        *("PULUMI_CONFIG_PASSPHRASE", "PULUMI_STACK", "PULUMI_ACCESS_TOKEN"),
        *("PULUMI_DIY_BACKEND_GZIP", "PULUMI_OPTION_REFRESH"),
    } & set(seen)
    assert not list(state.rglob("*lab*")), "a plan makes no stack, though the CLI does"
    assert "Leave .gpubed/pulumi/passphrase as it is" in done.stderr
    assert "pulumi stack change-secrets-provider passphrase -s lab" in done.stderr


@pytest.mark.process
def test_plain_pulumi_gets_gpubeds_passphrase_and_state_alone(own_settings):
    done, _ = own_settings("env", "lab")
    assert done.returncode == 0, done.stderr
    for name in ("PULUMI_CONFIG_PASSPHRASE", "PULUMI_DIY_BACKEND_GZIP"):
        assert f"unset {name}\n" in done.stdout
