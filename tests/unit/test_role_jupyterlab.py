"""Role jupyterlab: its certificate, what the launcher shows, what is a host's owner's."""

import os
import socket
import ssl
import subprocess
import threading

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from gpubed.core.paths import assets
from support import certificates, role_variables

pytestmark = pytest.mark.process

ROLE = assets() / "roles/jupyterlab"
OWN = "/etc/gpubed/jupyterlab"
HOSTS = ["10.1.2.3", "2001:db8::3", "node-0", "localhost", "127.0.0.1"]


def variable(name):
    return role_variables.value("base", name, "debian-12", __base_certificate_hosts=HOSTS)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The files of a certificate, made as the role makes it."""
    names = variable("__base_certificate_san"), variable("__base_certificate_permitted")
    return certificates.make(tmp_path_factory.mktemp("jupyterlab"), *names)


def greet(made, host, trusted):
    """Shake hands with a server that shows the certificate, as somebody who trusts a file."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(f"{made}.crt", f"{made}.key")
    client = ssl.create_default_context(cafile=trusted)
    # What Python 3.13 and browsers ask for.
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    ours, theirs = socket.socketpair()

    def serve():
        try:
            server.wrap_socket(theirs, server_side=True).close()
        except OSError:
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client.wrap_socket(ours, server_hostname=host).close()
    finally:
        ours.close()
        thread.join()


@pytest.mark.parametrize("host", HOSTS)
def test_it_is_good_for_each_name_of_the_head(made, host):
    greet(made, host, f"{made}.ca.crt")


def test_it_is_good_for_nothing_else(made):
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        greet(made, "bank.example", f"{made}.ca.crt")


def test_the_authority_can_vouch_for_no_other(made):
    """Neither is its key kept, nor would a certificate for another name count."""
    left = sorted(path.name for path in made.parent.iterdir())
    assert left == ["some.ca.crt", "some.crt", "some.key"]
    said = subprocess.run(
        ["openssl", "x509", "-in", f"{made}.ca.crt", "-noout", "-ext", "nameConstraints"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "critical" in said
    assert "IP:10.1.2.3/255.255.255.255" in said
    assert "Excluded" not in said


def test_only_the_owner_reads_the_key(made):
    assert (made.parent / "some.key").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("status", [True, False])
def test_the_launcher_leads_to_what_there_is(status):
    """Entries that jupyter-app-launcher cannot read are left out by it without a word."""
    text = (assets() / "roles/jupyterlab/templates/jp_app_launcher_gpubed.yml.j2").read_text()
    variables = {
        "ansible_managed": "managed",
        "jupyterlab_status": status,
        "jupyterlab_examples": ["digits", "mine"],
        "__jupyterlab_folder": OWN,
        "__jupyterlab_runs_link": "job-runs",
        "__jupyterlab_reports_link": "campaign-reports",
    }
    found = Templar(DataLoader(), variables=variables).template(trust_as_template(text))
    entries = yaml.safe_load(found)
    folders = ["Runs of jobs", "Reports of campaigns", "Example digits", "Example mine"]
    titles = [*folders, "Lease and GPUs", "Terminal on a node"]
    assert [entry["title"] for entry in entries] == ["Status page"] * status + titles
    assert {entry["catalog"] for entry in entries} == {"Cluster"}
    opened = [e["source"][0]["args"]["path"] for e in entries if e["type"] == "jupyterlab-commands"]
    assert opened == ["/job-runs", "/campaign-reports", "/examples/digits", "/examples/mine"]
    assert {type(entry["source"]) for entry in entries} == {str, list}


@pytest.fixture
def host(tmp_path):
    """A function that runs a script of the role on a host whose files are a test's own.

    Whatever else it calls are STAND-INS; returned are the lines that it printed, and their calls.
    """
    (tmp_path / "bin").mkdir()
    called = tmp_path / "called"
    called.write_text("")
    for name in ("pkill", "runuser", "userdel", "systemctl", "getent", "id"):
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\n# STAND-IN\necho "{name} $*" >>{called}\n')
        program.chmod(0o755)

    def run(text, *words, **answers):
        for name, does in answers.items():
            (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n# STAND-IN\n{does}\n")
        done = subprocess.run(
            ["sh", "-c", text.replace("/etc/", f"{tmp_path}/etc/"), "script", *words],
            env={"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=True,
        )
        said = done.stdout.replace(str(tmp_path), "").splitlines()
        return said, called.read_text().splitlines()

    return run


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({}, []),
        ({"passwd,jupyter": "jupyter:x:59001:59001::/:/", "group,jupyter": "jupyter:x:59001:"}, []),
        (
            {"passwd,jupyter": "jupyter:x:1005:100::/:/"},
            ["account jupyter (number and group 1005:100)"],
        ),
        ({"group,jupyter": "jupyter:x:1005:"}, ["group jupyter (number 1005)"]),
        ({"passwd,59001": "ann:x:59001:100::/:/"}, ["account ann (number 59001)"]),
        ({"group,59001": "lab:x:59001:"}, ["group lab (number 59001)"]),
    ],
)
def test_an_account_of_the_owners_is_named(host, known, said):
    text = (ROLE / "files/foreign-jupyterlab").read_text()
    cases = "".join(f"{key}) echo {line} ;;\n" for key, line in known.items())
    found, _ = host(
        text, "jupyter", "59001", "", "", getent=f'case "$1,$2" in\n{cases}*) exit 2 ;;\nesac'
    )
    assert found == said


@pytest.mark.parametrize(
    ("unit", "said"),
    [
        ("exit 1", []),
        (f"echo ExecStart=lab --config={OWN}/jupyter_server_config.py", []),
        ("echo ExecStart=/home/ann/jupyter-lab", ["jupyterlab.service"]),
    ],
)
def test_a_service_of_the_owners_is_named(host, tmp_path, unit, said):
    folder = tmp_path / OWN.lstrip("/")
    script = (ROLE / "files/foreign-jupyterlab").read_text()
    found, _ = host(script, "", "", str(folder), systemctl=unit.replace(OWN, str(folder)))
    assert found == said


@pytest.mark.parametrize(
    ("text", "served", "said"),
    [("ours", False, []), ("mine", False, ["/page.json"]), ("mine", True, [])],
)
def test_settings_of_the_owners_are_named(host, tmp_path, text, served, said):
    (tmp_path / "page.json").write_text(text)
    folder = tmp_path / OWN.lstrip("/")
    if served:
        folder.mkdir(parents=True)
    script = (ROLE / "files/foreign-jupyterlab").read_text()
    found, _ = host(script, "", "", str(folder), str(tmp_path / "page.json"), "ours")
    assert found == said
