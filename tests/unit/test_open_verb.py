"""`gpubed open` without questions about certificates: by a tunnel, or by trusting the right one."""

import http.server
import json
import os
import pwd
import re
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import urllib.request
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.access import tunnel
from gpubed.core.errors import GpubedError, PrerequisiteMissing
from gpubed.nodes import allocation
from support import certificates
from support.samples import granted_cluster

pytestmark = pytest.mark.process


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
    def through_ssh(_cluster, port, local=0):
        asked.update(port=port, local=local)
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as ssh, BytesIO() as errors:
            asked.update(ssh=ssh, errors=errors)
            yield tunnel.Tunnel(lab, ssh, errors)
            ssh.terminate()

    monkeypatch.setattr(tunnel, "through_ssh", through_ssh)
    return asked


def led_to(page):
    """Return where a page that a browser was handed leads to."""
    [there] = re.findall(r'http-equiv="refresh" content="0;url=(\S+)"', path_of(page).read_text())
    return there


def path_of(page):
    assert page.startswith("file:///")
    return Path(url2pathname(urlsplit(page).path))


def interrupt():
    """Press Ctrl-C, which ends the verb a moment later."""
    os.kill(os.getpid(), signal.SIGINT)
    return True


def call(*words):
    words = ["open", "lab", *words]
    return CliRunner().invoke(cli.build(), words, standalone_mode=False, catch_exceptions=False)


def refusal(*words):
    with pytest.raises(PrerequisiteMissing) as refused:
        call(*words)
    return refused.value


def test_a_browser_reaches_it_by_loopback_and_a_tunnel(project, tunnelled, monkeypatch):
    seen = {}

    def browse(page):
        url = led_to(page)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url) as answer:
            seen.update(json.load(answer), url=url)
        return interrupt()

    monkeypatch.setattr("webbrowser.open", browse)
    call("--tunnel")
    assert (tunnelled["port"], tunnelled["local"]) == (8888, 0)
    assert seen["url"] == f"http://{seen['host']}/lab?token={'t' * 64}"
    assert seen["host"].startswith("127.0.0.1:"), "one of the names that JupyterLab answers to"
    assert seen["path"] == f"/lab?token={'t' * 64}"


def test_the_token_is_no_argument_of_the_browser(project, monkeypatch):
    """Every user of this machine can list arguments."""
    seen = []
    monkeypatch.setattr("webbrowser.open", lambda page: bool(seen.append(page)) or True)
    assert call().return_value == 0
    assert "t" * 64 not in seen[0]
    page = path_of(seen[0])
    assert led_to(seen[0]).endswith(f":8888/lab?token={'t' * 64}")
    assert page.stat().st_mode & 0o077 == 0
    assert page.parent == project.secrets, "which `down` removes, and nobody else can enter"
    assert page.parent.stat().st_mode & 0o077 == 0


def test_the_page_of_a_tunnel_goes_with_it(project, tunnelled, monkeypatch):
    pages = []
    monkeypatch.setattr("webbrowser.open", lambda page: pages.append(path_of(page)) or interrupt())
    call("--tunnel")
    assert not pages[0].exists()


def test_another_user_of_this_machine_is_refused(project, tunnelled, monkeypatch):
    """As the kernel tells it; this process plays both, so another one is what it is not."""
    monkeypatch.setattr("os.getuid", lambda: 4_000_000)
    said = []

    def browse(page):
        with socket.create_connection(("127.0.0.1", urlsplit(led_to(page)).port)) as other:
            other.sendall(b"GET / HTTP/1.0\r\n\r\n")
            with suppress(ConnectionResetError):
                said.append(other.recv(1))
        return interrupt()

    monkeypatch.setattr("webbrowser.open", browse)
    noted = call("--tunnel").stderr
    assert said in ([], [b""])
    assert f"refused {pwd.getpwuid(os.geteuid()).pw_name}" in noted


def test_its_end_is_noticed_with_the_words_of_ssh(project, tunnelled, monkeypatch):
    """A laptop that was asleep; pages would stay empty without a word."""

    def browse(_):
        tunnelled["errors"].write(b"Timeout, server head not responding.\r\n")
        tunnelled["ssh"].terminate()
        return True

    monkeypatch.setattr("webbrowser.open", browse)
    with pytest.raises(GpubedError, match="has ended: Timeout, server head not") as ended:
        call("--tunnel")
    assert ended.value.hint == "gpubed open lab --tunnel"


@pytest.mark.parametrize("words", [["--tunnel"], []])
def test_without_a_browser_it_says_what_prints_the_token(project, tunnelled, monkeypatch, words):
    monkeypatch.setattr("webbrowser.open", lambda _: False)
    error = refusal(*words)
    assert (error.exit_code, error.hint) == (3, " ".join(["gpubed open lab", *words, "--print"]))
    assert not (project.secrets / "open.html").exists()


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


def test_nobody_can_wait_for_its_port(project, tunnelled, monkeypatch):
    """Who took it after the end would be sent the cookies of pages that are still open."""
    ports = []

    def browse(page):
        ports.append(urlsplit(led_to(page)).port)
        return interrupt()

    monkeypatch.setattr("webbrowser.open", browse)
    call("--tunnel")
    assert ports != [8888]
