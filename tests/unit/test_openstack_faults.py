"""What a cloud may answer instead of an answer: each is one clear error.

The server is a real one, with TLS; it stands for Keystone and Nova, of which only the
answers matter here. A real OpenStack is in tests/live.
"""

from __future__ import annotations

import json
import re
import ssl
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpubed.backends.openstack import cloud
from gpubed.core.errors import GpubedError, Refused
from gpubed.core.paths import Project
from gpubed.spec.clusterspec import model
from gpubed.testbeds import registry
from support.gpulab.pki import Authority
from support.specs import BACKENDS

PATIENCE_S = 0.5
SPEC = model().model_validate(
    {
        "version": 1,
        "name": "cloudy",
        "backend": {**BACKENDS["openstack"], "cloud": "mycloud"},
        "nodes": [{"count": 1}],
    }
)
CLUSTER = Project(Path("/nowhere")).cluster("cloudy")  # nothing was applied yet


class Api(BaseHTTPRequestHandler):
    """Keystone below /v3, Nova below /compute; `faults` says what either does instead."""

    server: Cloud

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._serve()

    def _serve(self) -> None:
        service = "keystone" if self.path.startswith("/v3") else "nova"
        is_question = self.path == "/v3/auth/tokens" or "/servers" in self.path
        self.server.asked.append(f"{service} {self.path}")
        fault = self.server.faults.get(service)
        if fault == "silence":
            time.sleep(4 * PATIENCE_S)
        elif fault == "garbage":
            self._send(200, b"<html>\xff</html>", "text/html")
        elif isinstance(fault, bytes) and is_question:
            self._send(200, fault, "application/json", **{"X-Subject-Token": "t"})
        elif isinstance(fault, int) and is_question:
            self._json(fault, {"error": {"code": fault, "message": f"sorry ({fault})"}})
        elif self.path == "/v3/auth/tokens":
            self._json(201, self.server.token(), **{"X-Subject-Token": "t"})
        elif service == "keystone":
            self._json(200, {"version": self.server.version("v3.14", "/v3/")})
        elif "/servers" in self.path:
            self._json(200, {"servers": []})
        else:
            self._json(200, {"version": self.server.version("v2.1", "/compute/v2.1/")})

    def _json(self, status: int, document: Any, **headers: str) -> None:
        self._send(status, json.dumps(document).encode(), "application/json", **headers)

    def _send(self, status: int, body: bytes, kind: str, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class Cloud(ThreadingHTTPServer):
    """Both services on one port."""

    daemon_threads = True

    def __init__(self, certificate: Any) -> None:
        super().__init__(("127.0.0.1", 0), Api)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self.server_port}"
        self.faults: dict[str, Any] = {}
        self.behind = timedelta()
        self.asked: list[str] = []

    def handle_error(self, *_: Any) -> None:
        """Clients that hang up are what is tested."""

    def version(self, name: str, path: str) -> dict[str, Any]:
        links = [{"rel": "self", "href": self.url + path}]
        return {"id": name, "status": "CURRENT", "version": "", "min_version": "", "links": links}

    def token(self) -> dict[str, Any]:
        endpoint = {"interface": "public", "region": "one", "region_id": "one", "id": "e"}
        compute = {"url": f"{self.url}/compute/v2.1", **endpoint}
        project = {"id": "p", "name": "p", "domain": {"id": "default", "name": "Default"}}
        return {
            "token": {
                "methods": ["password"],
                "issued_at": (datetime.now(UTC) - self.behind).isoformat(),
                "expires_at": "2099-01-01T00:00:00.000000Z",
                "user": {"id": "u", "name": "u", "domain": project["domain"]},
                "project": project,
                "catalog": [{"type": "compute", "name": "nova", "id": "c", "endpoints": [compute]}],
            }
        }


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path / "pki")


@pytest.fixture
def serve(authority, tmp_path, monkeypatch) -> Iterator[Any]:
    started: list[Cloud] = []

    def serve(
        *, expired: bool = False, cacert: Any = authority.path, region: str = "one", at: str = ""
    ) -> Cloud:
        server = Cloud(authority.server(expired=expired))
        started.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        auth = {"auth_url": at or f"{server.url}/v3", "username": "u", "password": "p"}
        domains = {"user_domain_name": "Default", "project_domain_name": "Default"}
        entry = {
            "auth": {**auth, **domains, "project_name": "p"},
            "region_name": region,
            **({"cacert": str(cacert)} if cacert else {}),
        }
        path = tmp_path / "clouds.yaml"
        path.write_text(yaml.safe_dump({"clouds": {"mycloud": entry}}))
        monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(path))
        return server

    monkeypatch.setattr(cloud, "_TIMEOUT_S", PATIENCE_S)
    cloud.connect.cache_clear()
    yield serve
    for server in started:
        server.shutdown()
        server.server_close()
    cloud.connect.cache_clear()


def servers() -> list[Any]:
    with cloud.errors("list the servers"):
        return list(cloud.connect("mycloud", None).compute.servers())


def refusal() -> GpubedError:
    with pytest.raises(GpubedError) as caught:
        servers()
    assert "\n" not in caught.value.message
    return caught.value


@pytest.mark.parametrize(
    ("faults", "kind", "says", "hint"),
    [
        ({"keystone": 401}, Refused, "does not accept the credentials", "application credential"),
        *(
            ({"nova": status}, Refused, f"cannot list the servers: sorry ({status})", "")
            for status in (403, 409, 503)
        ),
        ({"keystone": "silence"}, GpubedError, "no answer within", "operators"),
        ({"nova": "silence"}, GpubedError, "/servers", "operators"),
        ({"keystone": "garbage"}, GpubedError, "cannot list the servers", ""),
        ({"nova": "garbage"}, GpubedError, "cannot list the servers", ""),
    ],
)
def test_each_fault_is_one_error(serve, faults, kind, says, hint):
    server = serve()
    assert servers() == []
    cloud.connect.cache_clear()
    server.faults.update(faults)
    began = time.monotonic()
    told = refusal()
    assert isinstance(told, kind)
    assert says in told.message
    assert hint in str(told.hint)
    assert time.monotonic() - began < 60, "requests have a limit"


@pytest.mark.parametrize("server", [{"expired": True}, {"cacert": None}])
def test_a_server_that_nobody_vouches_for_is_told_nothing(serve, server):
    there = serve(**server)
    told = refusal()
    assert "certificate" in f"{told.message} {told.hint}"
    assert "OS_CACERT" in str(told.hint)
    assert there.asked == []


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ({"at": "https://127.0.0.1:1/v3"}, "auth_url"),
        ({"at": "https://no-such.invalid/v3"}, "auth_url"),
        ({"region": "two"}, "backend.region"),
    ],
)
def test_a_wrong_address_or_region_is_named_also_by_doctor(serve, wrong, hint, monkeypatch):
    serve(**wrong)
    assert hint in str(refusal().hint)
    *_, last = registry.bound("openstack", CLUSTER).doctor(SPEC)
    assert (last.id, last.ok) == ("openstack.credentials", False)
    assert hint in str(last.fix)


@pytest.mark.parametrize(("behind_s", "right"), [(0, True), (600, False), (-600, False)])
def test_doctor_compares_the_clock_with_a_cloud_that_sends_no_header_date(
    serve, behind_s, right, monkeypatch
):
    monkeypatch.setattr(Api, "date_time_string", lambda *_: "")
    there = serve()
    there.behind = timedelta(hours=9)
    cloud.connect("mycloud", None).session.get_token()  # a token of hours ago says nothing
    there.behind = timedelta(seconds=behind_s)
    found = {each.id: each for each in registry.bound("openstack", CLUSTER).doctor(SPEC)}
    assert found["openstack.clock"].ok is right
    [skew] = re.findall(r"clock is ([+-]\d+) s", found["openstack.clock"].message)
    assert int(skew) == pytest.approx(behind_s, abs=60)


@pytest.mark.process
def test_a_plugin_on_path_is_not_downloaded(tmp_path, monkeypatch):
    """STAND-IN: a CLI that cannot download."""
    for name in ("pulumi", "pulumi-resource-openstack"):
        (tmp_path / name).write_text("#!/bin/sh\necho 'failed to download' >&2; exit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    said = []
    registry.backend("openstack").repair(said.append)
    assert str(tmp_path / "pulumi-resource-openstack") in said[0]
    (tmp_path / "pulumi-resource-openstack").unlink()
    with pytest.raises(GpubedError, match="failed to download"):
        registry.backend("openstack").repair(said.append)
