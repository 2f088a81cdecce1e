"""`gpubed open` without questions about certificates: by a tunnel, or by trusting the right one."""

import http.server
import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
import urllib.request
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from gpubed import allocation, cli, tunnel
from gpubed.errors import GpubedError
from support import certificates
from support.samples import granted_cluster


class Lab(http.server.BaseHTTPRequestHandler):
    """A STAND-IN for JupyterLab: tells what it was asked for, and by which name."""

    def do_GET(self):
        body = json.dumps({"path": self.path, "host": self.headers["Host"]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return certificates.make_for_loopback(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def lab(made):
    """The port of a service that speaks TLS."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Lab)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{made}.crt", f"{made}.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def project(tmp_path, monkeypatch, made):
    """A cluster that is up, with its token and its certificate."""
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    paths = granted_cluster(tmp_path)
    paths.secrets.mkdir()
    (paths.secrets / "jupyterlab_token").write_text("t" * 64)
    shutil.copy(f"{made}.ca.crt", paths.state / "jupyterlab.crt")
    return paths


@pytest.fixture
def trusted(project, tmp_path):
    """The certificate that the role makes for the head of that cluster."""
    head = allocation.load(project.allocation).head
    hosts = [head.control_address, head.experiment_address, head.name, "localhost", "127.0.0.1"]
    certificate = project.state / "jupyterlab.crt"
    shutil.copy(f"{certificates.make_for(tmp_path, hosts)}.ca.crt", certificate)
    return certificate


@pytest.fixture
def tunnelled(lab, monkeypatch):
    """What a tunnel was asked for; a STAND-IN that leads to the service at once."""
    asked = {}

    @contextmanager
    def to_head(_cluster, _allocation, port, local=0, *, always=False):
        asked.update(port=port, always=always)
        yield "127.0.0.1", lab

    monkeypatch.setattr(tunnel, "to_head", to_head)
    return asked


def call(*words):
    words = ["open", "lab", *words]
    return CliRunner().invoke(cli.build(), words, standalone_mode=False, catch_exceptions=False)


def test_a_browser_reaches_it_by_loopback_and_a_tunnel(project, tunnelled, monkeypatch):
    seen = {}

    def browse(url):
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url) as answer:
            seen.update(json.load(answer), url=url)
        raise KeyboardInterrupt

    monkeypatch.setattr("webbrowser.open", browse)
    call("--tunnel")
    assert tunnelled == {"port": 8888, "always": True}
    assert seen["url"] == f"http://{seen['host']}/lab?token={'t' * 64}"
    assert seen["host"].startswith("127.0.0.1:"), "one of the names that JupyterLab answers to"
    assert seen["path"] == f"/lab?token={'t' * 64}"


def test_an_end_with_pages_open_is_quiet(project, tunnelled, monkeypatch, caplog):
    """A notebook's page keeps its connection."""
    held = []

    def browse(url):
        held.append(socket.create_connection(("127.0.0.1", urlsplit(url).port)))
        time.sleep(0.5)
        raise KeyboardInterrupt

    monkeypatch.setattr("webbrowser.open", browse)
    call("--tunnel")
    held[0].close()
    assert caplog.records == []


def test_without_a_browser_it_says_where_it_is(project, tunnelled, monkeypatch):
    monkeypatch.setattr("webbrowser.open", lambda _: False)
    monkeypatch.setattr(
        "gpubed.cli.ui.UI.note", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    assert call("--tunnel").stdout.startswith("http://127.0.0.1:")


def test_another_certificate_than_the_clusters_own_is_refused(
    project, tunnelled, tmp_path_factory, monkeypatch
):
    """Somebody else may listen where the tunnel ends."""
    other = certificates.make_for_loopback(tmp_path_factory.mktemp("other"))
    shutil.copy(f"{other}.ca.crt", project.state / "jupyterlab.crt")
    monkeypatch.setattr("webbrowser.open", lambda _: pytest.fail("a browser was opened"))
    with pytest.raises(GpubedError, match="CERTIFICATE_VERIFY_FAILED"):
        call("--tunnel")


def test_trust_names_the_certificate_and_each_system(trusted):
    said = call("--trust").stdout
    shown = ["openssl", "x509", "-noout", "-fingerprint", "-sha256", "-in", trusted]
    told = subprocess.run(shown, capture_output=True, text=True, check=True)
    assert told.stdout.strip().partition("=")[2] in said
    for system in ("Debian", "Fedora", "macOS", "Windows", "Firefox", "Chrome"):
        assert system in said
    assert str(trusted) in said
    assert "t" * 64 not in said


def test_trust_says_nothing_of_an_authority_without_limits(project, capsys):
    """Root of the head could have handed it over."""
    with pytest.raises(GpubedError, match="not to be trusted"):
        call("--trust")
    assert capsys.readouterr().out == ""


def test_trust_without_a_certificate_says_what_makes_one(project):
    (project.state / "jupyterlab.crt").unlink()
    with pytest.raises(GpubedError, match=r"there is no .*jupyterlab\.crt") as refused:
        call("--trust")
    assert "--tags jupyterlab" in refused.value.hint


def test_trust_has_json(trusted):
    document = json.loads(call("--trust", "--json").stdout)
    assert document["certificate"] == str(trusted)
    assert set(document) == {"schema", "certificate", "sha256", "systems"}
