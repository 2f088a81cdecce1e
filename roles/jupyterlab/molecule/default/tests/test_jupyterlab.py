"""The head after role jupyterlab."""

import json
import os
import ssl
import time
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


def ask(host, state, token, path, data=None, **headers):
    """A request from this machine that trusts the fetched certificate only."""
    address = host.check_output("grep ' node-0.control$' /etc/hosts").split()[0]
    context = ssl.create_default_context(cafile=str(state / "jupyterlab.crt"))
    request = urllib.request.Request(
        f"https://{address}:8888{path}",
        data,
        headers={"Authorization": f"token {token}", **headers},
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


def test_a_wrong_token_waits(host, state):
    started = time.monotonic()
    with pytest.raises(urllib.error.HTTPError):
        ask(host, state, "wrong", "/api/status")
    assert time.monotonic() - started >= 1


def test_a_foreign_host_is_refused(host, state, token):
    """A page of somebody else's, whose name leads here (DNS rebinding)."""
    with pytest.raises(urllib.error.HTTPError, match="421"):
        ask(host, state, token, "/api/status", Host="evil.example:8888")


def test_cookies_are_for_its_own_pages_only(host, state, token):
    answer = ask(host, state, token, "/lab")
    cookies = answer.headers.get_all("Set-Cookie")
    assert cookies
    assert all("Secure" in cookie and "SameSite=Strict" in cookie for cookie in cookies)
    assert "max-age" in answer.headers["Strict-Transport-Security"]


@pytest.mark.parametrize(
    ("words", "accepted"),
    [
        ("-tls1_1", False),
        ("-tls1_2 -cipher ECDHE-ECDSA-AES128-SHA256", False),
        ("-tls1_2 -cipher ECDHE-ECDSA-AES128-GCM-SHA256", True),
        ("-tls1_3", True),
    ],
)
def test_encryption_is_authenticated(host, words, accepted):
    said = host.run(f"openssl s_client -connect 127.0.0.1:8888 {words} </dev/null").stdout
    assert ("Cipher is (NONE)" not in said) is accepted


def test_its_authority_can_sign_nothing_else(host, state):
    """Whoever trusts it trusts no other page: its key is gone, and it has these names alone."""
    files = host.check_output("ls /etc/gpubed/jupyterlab").split()
    assert [name for name in files if name.endswith(".key")] == [
        name.replace(".crt", ".key")
        for name in files
        if name.endswith(".crt") and not name.endswith(".ca.crt")
    ]
    assert host.check_output("ls -A /dev/shm | grep -c '^tmp[.]' || true") == "0"
    shown = "openssl x509 -noout -ext nameConstraints,basicConstraints -in"
    said = host.check_output(f"{shown} /etc/gpubed/jupyterlab/*.ca.crt")
    assert said.count("critical") == 2
    assert "pathlen:0" in said


def test_its_account_is_no_way_to_root(host):
    """Neither here, nor on another node, nor with the key of an account that may."""
    login = "ssh -o BatchMode=yes node-1"
    for words in (
        "sudo -n true",
        f"{login} sudo -n true",
        f"{login} -l gpubed true",
        "cat /home/gpubed/.ssh/id_gpubed",
    ):
        # Turned round on the node: 255, which ssh ends with, is testinfra's own ssh's to it.
        assert host.run(f"! runuser -u jupyter -- {words}").rc == 0, words
    assert host.run(f"runuser -u jupyter -- {login} true").rc == 0


def test_its_account_trains_on_all_nodes(host):
    sums = (
        "import horovod.torch as hvd, torch; hvd.init();"
        "print(int(hvd.allreduce(torch.tensor([1]), op=hvd.Sum)[0]), hvd.size())"
    )
    run = f'gpubed-horovodrun -- python -c \\"{sums}\\"'
    done = host.run(f'runuser -l jupyter -c "{run}"')
    assert done.stdout.count("2 2") == 2, done.stdout + done.stderr


def test_it_offers_the_kernel_that_knows_the_cluster(host, state, token):
    specs = json.load(ask(host, state, token, "/api/kernelspecs"))
    assert list(specs["kernelspecs"]) == ["horovod"]
    assert specs["default"] == "horovod"


def test_the_launcher_leads_to_the_cluster(host, state, token):
    words = json.dumps({"method": "init_launcher"}).encode()
    entries = json.load(ask(host, state, token, "/jupyterlab-app-launcher", words))
    assert {entry["catalog"] for entry in entries} == {"Cluster"}
    titles = [entry["title"] for entry in entries]
    shown = ["Runs of jobs", "Reports of campaigns", "Example digits", "Example imagenet"]
    assert titles == [*shown, "Lease and GPUs", "Terminal on a node"]
    told = host.check_output("runuser -u jupyter -- /etc/gpubed/jupyterlab/cluster-state")
    assert told.startswith("The ")
    assert "load average" in told


def test_the_launcher_shows_the_runs_of_jobs(host, state, token):
    found = json.load(ask(host, state, token, "/api/contents/job-runs"))
    assert found["type"] == "directory"


def test_it_leads_to_no_port_of_the_head(host, state, token):
    """What lets a browser through comes with the launcher's section."""
    with pytest.raises(urllib.error.HTTPError, match="404"):
        ask(host, state, token, "/proxy/22/")


def test_it_starts_at_boot(host):
    assert host.service("jupyterlab").is_enabled
    assert host.service("jupyterlab").is_running


def test_it_runs_as_the_user(host):
    assert host.process.get(comm="jupyter-lab").user == "jupyter"


def test_the_token_is_for_the_user_only(host, token):
    config = host.file(CONFIG)
    assert (config.user, config.group, config.mode) == ("root", "jupyter", 0o640)
    assert token in config.content_string


def test_the_token_is_not_in_the_journal(host, token):
    assert token not in host.check_output("journalctl --no-pager -u jupyterlab")


def test_the_token_is_in_no_command_line_and_environment(host, token):
    everything = host.check_output(
        "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'"
    )
    assert token not in everything


def test_its_account_writes_nowhere_where_root_works(host):
    """Else it could put a link there, which root would follow."""
    looks = (
        "runuser -u jupyter -- find /etc/gpubed /etc/jupyter /usr/local/share -writable ! -type l"
    )
    assert host.run(looks).stdout == ""


@pytest.mark.parametrize("folder", ["notebooks/", "runs/", "reports/", "notebooks/job-runs/"])
def test_its_account_sees_runs_and_notebooks_and_other_accounts_do_not(host, folder):
    other = "setpriv --reuid 1234 --regid 1234 --clear-groups"
    assert host.run(f"runuser -u jupyter -- ls /shared/{folder}").rc == 0
    assert host.run(f"{other} ls /shared/{folder}").rc != 0


@pytest.mark.parametrize("job", ["digits", "imagenet"])
def test_the_notebook_is_placed(host, job):
    path = f"/shared/notebooks/examples/{job}/{job}.ipynb"
    notebook = json.loads(host.file(path).content_string)
    assert notebook["metadata"]["kernelspec"]["name"] == "horovod"


@pytest.mark.parametrize("job", ["digits", "imagenet"])
def test_the_notebook_runs_to_its_end(host, job):
    run = (
        f"cd /shared/notebooks/examples/{job} && /shared/env/current/bin/jupyter nbconvert"
        " --to notebook --execute --output-dir /tmp"
        f" --ExecutePreprocessor.kernel_name=horovod {job}.ipynb"
    )
    done = host.run(f"runuser -l jupyter -c '{run}'")
    assert done.rc == 0, done.stderr
