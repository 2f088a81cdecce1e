"""`https.request` checks the certificate, and each error names the command that repairs it."""

import http.server
import shutil
import ssl
import threading
from contextlib import contextmanager

import pytest

from gpubed.access import https
from gpubed.core.errors import GpubedError
from gpubed.core.paths import Project
from gpubed.nodes.allocation import Cluster
from support import certificates
from support.samples import sample_allocation, sample_plan


class Echo(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(403)
        self.end_headers()
        self.wfile.write(f"{self.headers['Authorization']} {self.path} {body.decode()}".encode())

    def log_message(self, *_):
        pass


@contextmanager
def served(made):
    """Serve HTTPS with a certificate; give the port."""
    with http.server.HTTPServer(("127.0.0.1", 0), Echo) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(f"{made}.crt", f"{made}.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture
def cluster(tmp_path):
    """A cluster whose head is this machine."""
    plan = sample_plan()
    granted = sample_allocation(plan)
    here = granted.nodes[0].model_copy(update={"control_address": "127.0.0.1"})
    granted = granted.model_copy(update={"nodes": (here, *granted.nodes[1:])})
    found = Cluster(Project(tmp_path).cluster("lab"), plan, granted)
    found.paths.state.mkdir(parents=True)
    return found


@pytest.mark.process
def test_status_and_answer_come_from_who_shows_the_clusters_certificate(cluster, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "other").mkdir()
    own = certificates.make_for_loopback(tmp_path / "own")
    other = certificates.make_for_loopback(tmp_path / "other")
    shutil.copy(f"{own}.ca.crt", https.certificate(cluster, "hub"))
    words = {"method": "POST", "body": b"{}"}
    with served(own) as port:
        answer = https.request(cluster, "hub", port, "/page", "token t", **words)
    assert answer == (403, "token t /page {}")
    with served(other) as port, pytest.raises(GpubedError, match="hub does not answer") as found:
        https.request(cluster, "hub", port, "/page", "token t")
    assert found.value.hint == "gpubed configure lab --tags hub"


def test_a_service_that_is_not_set_up_says_so(cluster):
    with pytest.raises(GpubedError, match="hub is not set up yet") as found:
        https.request(cluster, "hub", 1, "/", "")
    assert found.value.hint == "gpubed up lab"
