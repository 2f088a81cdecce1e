"""What the CLI says, in our words. STAND-IN: a script that only fails; the CLI is in tests/live."""

import pytest
from pulumi import automation as api

from gpubed import automation
from gpubed.engine import LogEvent
from gpubed.errors import GpubedError

PLUGIN = """1 error occurred:
\t* creating urn:pulumi:vw::gpubed::openstack:compute/instance:Instance::node-0: 1 error occurred:
\t* Error creating OpenStack server: Quota exceeded for cores"""
TRACEBACK = """Traceback (most recent call last):
  File "/srv/provider.py", line 3, in create
    raise Refused(message)
          ^^^^^^^
gpubed.errors.Refused: there is no flavor 'huge'
  there is no image 'old'
  hint: gpubed doctor CLUSTER"""


def diagnosed(*messages, severity="error"):
    """Return what comes of a failed command whose diagnostics were these."""
    heard = []
    translator = automation._Translator(heard.append, planning=True)
    for message in messages:
        event = api.DiagnosticEvent(message, "red", severity)
        translator.handle(api.EngineEvent(0, 0, diagnostic_event=event))
    assert all(isinstance(event, LogEvent) for event in heard)
    with pytest.raises(GpubedError) as caught, automation._pulumi_errors(translator.errors):
        raise api.errors.CommandError(api.CommandResult(stdout="", stderr="error: no", code=255))
    return caught.value


def test_an_error_of_many_lines_is_told_whole():
    assert diagnosed(f"{PLUGIN}\n\n", "preview failed").message == PLUGIN


def test_of_a_traceback_the_exception_is_told_with_all_its_lines():
    told = diagnosed(TRACEBACK, "update failed").message
    assert told.splitlines()[0] == "gpubed.errors.Refused: there is no flavor 'huge'"
    assert "there is no image 'old'" in told
    assert "provider.py" not in told


def test_the_same_error_is_told_once():
    assert diagnosed(PLUGIN, PLUGIN).message == PLUGIN


def test_warnings_are_no_reason():
    assert diagnosed("deprecated", severity="warning").message == "no"


@pytest.fixture
def cli(tmp_path, monkeypatch):
    """Put a CLI on PATH that fails with a text."""

    def install(text):
        path = tmp_path / "bin" / "pulumi"
        path.parent.mkdir()
        path.write_text(f'#!/bin/sh\n[ "$1" = version ] && exec echo v3.260.0\nexec >&2\n{text}\n')
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
        (tmp_path / "Pulumi.yaml").write_text("name: x\nruntime: python\n")
        return tmp_path

    return install


def test_another_passphrase_leads_to_the_file_that_has_it(cli):
    """As after `pulumi stack change-secrets-provider passphrase`."""
    root = cli("echo 'error: getting secrets manager: incorrect passphrase'; exit 255")
    with pytest.raises(GpubedError) as caught:
        automation.operate("preview", "lab", root, {}, lambda _: None)
    assert "incorrect passphrase" in caught.value.message
    assert ".gpubed/pulumi/passphrase" in caught.value.hint
    assert "change-secrets-provider" in caught.value.hint
