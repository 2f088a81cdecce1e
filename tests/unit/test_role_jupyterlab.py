"""The certificate that role jupyterlab makes, whom it is good for, and what the launcher shows."""

import socket
import ssl
import subprocess
import threading

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from gpubed.paths import assets
from support import certificates, role_variables

HOSTS = ["10.1.2.3", "2001:db8::3", "node-0", "localhost", "127.0.0.1"]


def variable(name):
    return role_variables.value("jupyterlab", name, "debian-12", __jupyterlab_hosts=HOSTS)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The files of a certificate, made as the role makes it."""
    names = variable("__jupyterlab_san"), variable("__jupyterlab_permitted")
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


@pytest.mark.parametrize("changed", ["__jupyterlab_hosts", "__jupyterlab_certify"])
def test_other_names_or_another_way_to_make_it_make_another(changed):
    given = {"__jupyterlab_hosts": HOSTS, "__jupyterlab_certify": certificates.SCRIPT.read_text()}
    other = {**given, changed: given[changed][:-1]}
    first, second = (
        role_variables.value("jupyterlab", "__jupyterlab_certificate", "debian-12", **values)
        for values in (given, other)
    )
    assert first.startswith("/etc/gpubed/jupyterlab/")
    assert first != second


@pytest.mark.parametrize("status", [True, False])
def test_the_launcher_leads_to_what_there_is(status):
    """Entries that jupyter-app-launcher cannot read are left out by it without a word."""
    text = (assets() / "roles/jupyterlab/templates/jp_app_launcher_gpubed.yml.j2").read_text()
    variables = {
        "ansible_managed": "managed",
        "jupyterlab_status": status,
        "jupyterlab_examples": ["digits", "mine"],
        "__jupyterlab_runs_link": "job-runs",
    }
    found = Templar(DataLoader(), variables=variables).template(trust_as_template(text))
    entries = yaml.safe_load(found)
    titles = ["Runs of jobs", "Example digits", "Example mine", "Terminal on a node"]
    assert [entry["title"] for entry in entries] == ["Status page"] * status + titles
    assert {entry["catalog"] for entry in entries} == {"Cluster"}
    opened = [e["source"][0]["args"]["path"] for e in entries if e["type"] == "jupyterlab-commands"]
    assert opened == ["/job-runs", "/examples/digits", "/examples/mine"]
    assert {type(entry["source"]) for entry in entries} == {str, list}


def test_a_terminal_on_a_node_asks_for_the_node_and_goes_there(tmp_path):
    """With STAND-INS for ssh and for the list of nodes."""
    text = (assets() / "roles/jupyterlab/templates/jp_app_launcher_gpubed.yml.j2").read_text()
    (command,) = [line for line in text.splitlines() if line.startswith("  source: bash")]
    (tmp_path / "hostfile").write_text("node-0 slots=1\nnode-1 slots=1\n")
    (tmp_path / "ssh").write_text("#!/bin/sh\necho went to $1\n")
    (tmp_path / "ssh").chmod(0o755)
    typed = yaml.safe_load(command)["source"].replace("/etc/gpubed", str(tmp_path))
    done = subprocess.run(
        ["sh", "-c", typed],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        input="2\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "went to node-1\n"
    assert "node (a number)> " in done.stderr
