"""Servers whose TLS is of another time, as the Virtual Wall's own page says of its server."""

from __future__ import annotations

import ssl
import threading
import xmlrpc.client
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from gpubed.backends.virtualwall import login
from gpubed.backends.virtualwall.config import Config
from gpubed.backends.virtualwall.transport import Endpoint
from gpubed.core.errors import PrerequisiteMissing
from support.am import pki
from unit.test_virtualwall_documents import BACKEND

ANSWER = xmlrpc.client.dumps((7,), methodresponse=True).encode()
# The second group of RFC 2409 for key exchange (1024 bits), which everybody knows.
SHORT = """-----BEGIN DH PARAMETERS-----
MIGHAoGBAP//////////yQ/aoiFowjTExmKLgNwc0SkCTgiKZ8x0Agu+pjsTmyJR
Sgh5jjQE3e+VGbPNOkMbMCsKbfJfFDdP4TVtbVHCReSFtXZiXn7G9ExC6aY37WsL
/1y29Aa37e44a/taiZ+lrp8kEXxLH+ZJKGZR7OZTgf//////////AgEC
-----END DH PARAMETERS-----
"""


class _Answer(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(ANSWER)))
        self.end_headers()
        self.wfile.write(ANSWER)

    def log_message(self, *words):
        pass


@contextmanager
def old_server(folder, weak, ciphers="DHE-RSA-AES256-GCM-SHA384", version=ssl.TLSVersion.TLSv1_2):
    """A server with a short key of its own, or with short ones for each connection."""
    root = pki.root("wall2.ilabt.example")
    key = rsa.generate_private_key(65537, 1024 if weak == "key" else 2048)
    identity = pki.issue(root, "am", hosts=("127.0.0.1",), key=key)
    (folder / "ca.pem").write_text(root.pem)
    (folder / "server.pem").write_text(identity.pem + identity.key_pem())
    login = pki.issue(root, "alice")
    (folder / "login.pem").write_text(login.pem + login.key_pem())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = context.maximum_version = version
    context.set_ciphers(f"{ciphers}:@SECLEVEL=0")
    context.load_cert_chain(folder / "server.pem")
    (folder / "dh.pem").write_text(SHORT)
    context.load_dh_params(folder / "dh.pem")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answer) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"https://127.0.0.1:{server.server_port}/"
        server.shutdown()


def endpoint(folder, url, **options):
    files = {"ca": str(folder / "ca.pem"), "login": str(folder / "login.pem")}
    config = Config.model_validate(BACKEND | files | options)
    return Endpoint(url, login.context(config), "the aggregate")


@pytest.mark.parametrize("weak", ["key", "connection"])
def test_a_server_of_another_time_is_named_with_what_lets_it_in(tmp_path, weak):
    """At once: no patience makes its keys longer."""
    with old_server(tmp_path, weak) as url:
        with pytest.raises(PrerequisiteMissing, match=r"too (weak|small)") as refused:
            endpoint(tmp_path, url).call("GetVersion")
        assert "backend.old_tls: true" in refused.value.hint
        assert endpoint(tmp_path, url, old_tls=True).call("GetVersion") == 7


def test_a_server_with_old_ciphers_is_no_fault_of_the_login(tmp_path):
    with old_server(tmp_path, "", ciphers="AES256-GCM-SHA384") as url:
        with pytest.raises(PrerequisiteMissing, match="handshake failure") as refused:
            endpoint(tmp_path, url).call("GetVersion")
        assert "backend.old_tls: true" in refused.value.hint
        assert endpoint(tmp_path, url, old_tls=True).call("GetVersion") == 7


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_a_server_with_an_old_version_is_no_fault_of_the_login(tmp_path):
    with old_server(tmp_path, "", ciphers="ALL", version=ssl.TLSVersion.TLSv1_1) as url:
        with pytest.raises(PrerequisiteMissing, match="protocol") as refused:
            endpoint(tmp_path, url).call("GetVersion")
        assert "TLS 1.2" in refused.value.hint


def test_an_authority_as_emulab_makes_them_is_believed_by_every_python(tmp_path, monkeypatch):
    """Python 3.13 and later are strict by default, and refuse it for what it does not say."""
    genuine = ssl.create_default_context

    def strict(**options):
        made = genuine(**options)
        made.verify_flags |= ssl.VERIFY_X509_STRICT
        return made

    monkeypatch.setattr(ssl, "create_default_context", strict)
    with old_server(tmp_path, "connection") as url:
        assert endpoint(tmp_path, url, old_tls=True).call("GetVersion") == 7


def test_a_server_of_another_time_is_verified_all_the_same(tmp_path):
    with old_server(tmp_path, "key") as url:
        (tmp_path / "ca.pem").write_text(pki.root("somebody.else").pem)
        with pytest.raises(PrerequisiteMissing) as refused:
            endpoint(tmp_path, url, old_tls=True).call("GetVersion")
        assert "backend.ca" in refused.value.hint
