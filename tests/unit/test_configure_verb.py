"""`gpubed configure`: a part of the roles, a part of the nodes, or only a look."""

import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.configuration import configure, events
from gpubed.core import record
from gpubed.core.errors import UsageError
from support.samples import granted_cluster


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """What ansible-runner was asked for; a STAND-IN for Ansible that says all was well."""
    changed = {"node-2": 0, "node-1": 2, "node-0": 0}
    asked = {"events": [{"event": "stats", "changed": changed}], "rc": 0}

    def init(program, words, **settings):
        assert program == "ansible-playbook"
        asked.update(settings, words=words)
        env = {**settings["envvars"], "ANSIBLE_STDOUT_CALLBACK": "", "ANSIBLE_CALLBACK_PLUGINS": ""}

        def run():
            lines = "".join(json.dumps(event) + "\n" for event in asked["events"])
            Path(env[events.FILE]).write_text(lines)

        return SimpleNamespace(rc=asked["rc"], config=SimpleNamespace(env=env), run=run)

    monkeypatch.setattr(configure, "init_command_config", init)
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    asked["cluster"] = granted_cluster(tmp_path)
    return asked


def call(*words):
    words = ["configure", "lab", *words]
    return CliRunner().invoke(cli.build(), words, standalone_mode=False, catch_exceptions=False)


@pytest.mark.parametrize(
    ("tags", "hint"), [("jupiterlab", "did you mean 'jupyterlab'?"), ("base,nfs", "'nfs'")]
)
def test_a_role_that_the_cluster_does_not_have_is_refused(asked, tags, hint):
    """Ansible would do nothing and call that a success."""
    with pytest.raises(UsageError, match="cluster lab has no role") as refused:
        call("--tags", tags)
    assert hint in refused.value.hint or hint in refused.value.message
    assert "words" not in asked


@pytest.mark.process
@pytest.mark.parametrize("words", [[], ["--limit", "node-1"]])
def test_one_that_is_cut_off_leaves_the_cluster_unfinished(asked, monkeypatch, words):
    def cut(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(configure, "init_command_config", cut)
    call(*words)
    assert record.read(asked["cluster"]).unfinished


@pytest.mark.process
@pytest.mark.parametrize("words", [["node-9"], ["~("]])
def test_a_limit_that_names_no_node_is_refused_before_anything_is_marked(asked, words):
    """What is marked cannot be used until the next `up`, and nothing would have been done."""
    with pytest.raises(UsageError, match=r"--limit .* names no node") as refused:
        call("--limit", *words)
    assert refused.value.hint == "nodes: node-0, node-1, node-2"
    assert not record.read(asked["cluster"]).unfinished
    assert "words" not in asked


@pytest.mark.process
@pytest.mark.parametrize("name", ["C", "xx_YY.UTF-8"])
def test_ansible_runs_in_any_locale(asked, monkeypatch, name):
    """It refuses what is not UTF-8, and a locale that this machine does not have."""
    monkeypatch.setenv("LC_ALL", name)
    asked["cluster"].hosts.write_text("all: {hosts: {node-1: {}}}\n")
    asked["cluster"].ssh_config.touch()
    assert configure.limited(asked["cluster"], "node-1") == ["node-1"]


@pytest.mark.parametrize(("name", "told"), [("C", True), ("xx_YY.UTF-8", True), ("C.UTF-8", False)])
def test_env_exports_a_locale_only_where_ansible_needs_one(asked, monkeypatch, name, told):
    monkeypatch.setenv("LC_ALL", name)
    said = CliRunner().invoke(cli.build(), ["env", "lab"], standalone_mode=False).stdout
    assert ("export LC_ALL=C.UTF-8" in said) is told


@pytest.mark.parametrize("words", [(), ("--tags", "nfs"), ("--check",)])
def test_no_other_node_serves_the_shared_folder_unasked(asked, words):
    cluster = asked["cluster"]
    served = "storage: {shared: {provider: nfs}}"
    text = cluster.spec.read_text().replace("{type: local}", "{type: local, runtime: vm}")
    cluster.spec.write_text(f"{text}\n{served}\n")
    assert call("--tags", "base").exit_code == 0
    assert not record.read(cluster).served, "its role was not among them"
    assert call("--tags", "nfs").exit_code == 0
    assert record.read(cluster).served["node"] == "node-0"
    del asked["words"]
    cluster.spec.write_text(f"{text}\n{served.replace('nfs', 'nfs, server: node-1')}\n")
    with pytest.raises(UsageError, match="/shared, which node-0 serves") as refused:
        call(*words)
    assert refused.value.hint == "gpubed up lab asks before it does that"
    assert "words" not in asked


def result(event, host, **changes):
    fields = {"role": None, "task": "Check", "host": host, "seconds": 1.5, "changed": False}
    return {"event": event, "reason": "no", **fields, **changes}


def test_a_failure_outside_of_roles_and_phases_names_the_task(asked):
    lost = result("failed", "node-1", task="Gathering Facts", reason="no route\n→ do this")
    asked |= {"events": [lost], "rc": 4}
    with pytest.raises(configure.ConfigurationFailed) as failed:
        call()
    assert failed.value.message == "Gathering Facts failed on node-1: no route\n  | → do this"


def test_a_certificate_that_is_not_trusted_is_one_sentence(asked):
    pip = "WARNING: Retrying\n" * 9 + "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"
    asked |= {"events": [result("failed", "node-1", role="python_env", reason=pip)], "rc": 2}
    with pytest.raises(configure.ConfigurationFailed) as failed:
        call()
    assert failed.value.message.splitlines() == [
        "python_env: Check failed on node-1: it does not trust the server that it downloads from: "
        "certificate verify failed"
    ]
    assert failed.value.hint.startswith("export SSL_CERT_FILE=")
    assert "gpubed up lab" in failed.value.hint


FAILED, DONE = ("failed", "node-1"), ("ok", "node-1")


@pytest.mark.parametrize(
    ("results", "sign"),
    [
        ([DONE, FAILED], "✗ phase services"),
        ([FAILED, ("ok", "node-0")], "✗ phase services"),
        ([("unreachable", "node-1")], "✗ phase services"),
        ([FAILED, DONE], "✓ phase services"),  # a block rescued it
        ([FAILED, DONE, FAILED], "✗ phase services"),
    ],
)
def test_a_phase_is_marked_as_what_it_came_to(asked, results, sign):
    asked["events"] = [{"event": "play", "play": "Base"}, result(*DONE)]
    asked["events"] += [
        {"event": "play", "play": "Services"},
        *(result(*one, role="docker") for one in results),
    ]
    said = call().stderr
    assert "✓ phase base" in said
    assert sign in said


@pytest.mark.process
@pytest.mark.parametrize(
    "command", ["/opt/gpubed/uv/bin/pip download x", ["/opt/gpubed/uv/bin/pip"]]
)
def test_a_program_that_cannot_be_started_is_named_with_the_cause(command):
    """Ansible's answer has the error's number, and no word of it."""
    answer = {"msg": "Error executing command.", "rc": 13, "cmd": command, "stdout": ""}
    plugin = runpy.run_path(
        str(Path(__file__).parents[2] / "playbooks/callback_plugins/gpubed_events.py")
    )
    said = plugin["_reason"](answer)
    assert said == "/opt/gpubed/uv/bin/pip cannot be run: Permission denied"
