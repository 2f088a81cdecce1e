"""The head after role jupyterlab."""

import json
import os
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import pytest

CONFIG = "/etc/gpubed/jupyterlab/jupyter_server_config.py"


@pytest.fixture(autouse=True)
def head_only(host):
    if host.check_output("hostname") != "node-0":
        pytest.skip("JupyterLab is on the head")


@pytest.fixture(scope="module")
def state():
    """The cluster's state folder on this machine."""
    (config,) = Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]).glob(".gpubed/*/jupyterlab.crt")
    return config.parent


@pytest.fixture(scope="module")
def token(state):
    return (state / "secrets/jupyterlab_token").read_text().strip()


def ask(host, state, token, path):
    """A request from this machine that trusts the fetched certificate only."""
    address = host.check_output("grep ' node-0.control$' /etc/hosts").split()[0]
    context = ssl.create_default_context(cafile=str(state / "jupyterlab.crt"))
    request = urllib.request.Request(
        f"https://{address}:8888{path}", headers={"Authorization": f"token {token}"}
    )
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    return opener.open(request, timeout=10)


def test_it_answers_over_verified_tls_to_the_token(host, state, token):
    assert ask(host, state, token, "/api/status").status == 200


def test_it_refuses_a_wrong_token(host, state):
    with pytest.raises(urllib.error.HTTPError, match="403"):
        ask(host, state, "wrong", "/api/status")


def test_it_offers_the_kernel_that_knows_the_cluster(host, state, token):
    specs = json.load(ask(host, state, token, "/api/kernelspecs"))
    assert list(specs["kernelspecs"]) == ["horovod"]
    assert specs["default"] == "horovod"


def test_it_starts_at_boot(host):
    assert host.service("jupyterlab").is_enabled
    assert host.service("jupyterlab").is_running


def test_it_runs_as_the_user(host):
    assert host.process.get(comm="jupyter-lab").user == "gpubed"


def test_the_token_is_for_the_user_only(host, token):
    config = host.file(CONFIG)
    assert (config.user, config.mode) == ("gpubed", 0o600)
    assert token in config.content_string


def test_the_token_is_not_in_the_journal(host, token):
    assert token not in host.check_output("journalctl --no-pager -u jupyterlab")


def test_the_token_is_in_no_command_line_and_environment(host, token):
    everything = host.check_output(
        "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'"
    )
    assert token not in everything


def test_the_notebook_is_placed(host):
    notebook = json.loads(
        host.file("/shared/notebooks/examples/digits/digits.ipynb").content_string
    )
    assert notebook["metadata"]["kernelspec"]["name"] == "horovod"


def test_the_notebook_runs_to_its_end(host):
    run = (
        "cd /shared/notebooks/examples/digits && /shared/env/current/bin/jupyter nbconvert"
        " --to notebook --execute --output-dir /tmp"
        " --ExecutePreprocessor.kernel_name=horovod digits.ipynb"
    )
    done = host.run(f"runuser -l gpubed -c '{run}'")
    assert done.rc == 0, done.stderr
