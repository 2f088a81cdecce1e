"""Docker's errors become one sentence and a way out."""

from __future__ import annotations

import json
import socketserver
import subprocess
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from docker.errors import APIError, DockerException

from gpubed.backends.local import daemon
from gpubed.core.errors import GpubedError, PrerequisiteMissing
from gpubed.spec.plan import plan
from gpubed.testbeds.specification import load
from support.cluster import BIN, Cluster
from support.samples import sample_allocation


def raised(error: Exception) -> GpubedError:
    with pytest.raises(GpubedError) as caught, daemon.errors("make node node-0"):
        raise error
    return caught.value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("('Connection aborted.', PermissionError(13, 'Permission denied'))", "may not use"),
        ("('Connection aborted.', FileNotFoundError(2, 'No such file'))", "not running"),
        ("('Connection aborted.', ConnectionRefusedError(111, 'refused'))", "not running"),
        ("Read timed out.", "does not answer"),
    ],
)
def test_unreachable_daemon(text: str, expected: str) -> None:
    error = raised(DockerException(f"Error while fetching server API version: {text}"))
    assert isinstance(error, PrerequisiteMissing)
    assert expected in error.message
    assert error.hint


def test_full_disk_is_a_prerequisite() -> None:
    error = raised(APIError("boom", explanation="write /var/x: no space left on device"))
    assert isinstance(error, PrerequisiteMissing)
    assert "full" in error.message


@pytest.mark.parametrize(
    "text", ["FileNotFoundError(2)", "ConnectionRefusedError(111)", "PermissionError(13)", "else"]
)
def test_a_daemon_of_another_place_is_named_and_nothing_is_to_be_installed(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///run/mine.sock")
    error = raised(DockerException(text))
    assert "DOCKER_HOST=unix:///run/mine.sock" in error.message
    assert "apt-get" not in str(error.hint)
    assert "usermod" not in str(error.hint)
    assert "unset DOCKER_HOST" in str(error.hint)


class Hung(BaseHTTPRequestHandler):
    """A daemon that hangs: at once, or at what takes a container's lock, as dockerd does."""

    server: Any

    def do_GET(self) -> None:
        if not (self.server.tells_version and self.path.endswith(("/version", "/info"))):
            self.server.stopped.wait(120)
            return
        known = {"ApiVersion": "1.41", "ID": "i", "Name": "n", "ServerVersion": "20"}
        body = json.dumps({**known, "OperatingSystem": "", "SecurityOptions": []}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.process
@pytest.mark.parametrize(
    ("verb", "tells_version"), [("status", False), ("audit", True)], ids=["silent", "lists hang"]
)
def test_verbs_that_look_do_not_wait_for_a_daemon_that_hangs(
    tmp_path: Path, verb: str, tells_version: bool
) -> None:
    cluster = Cluster(tmp_path / "project", "lab", nodes=[{"count": 1}])
    cluster.state.mkdir(parents=True)
    granted = sample_allocation(plan(load(cluster.spec_path)))
    (cluster.state / "allocation.json").write_text(granted.model_dump_json())
    server: Any = socketserver.ThreadingUnixStreamServer(str(tmp_path / "docker.sock"), Hung)
    server.daemon_threads, server.block_on_close = True, False
    server.tells_version, server.stopped = tells_version, threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    ran = subprocess.run(
        [str(BIN / "gpubed"), verb, "lab"],
        env={**cluster.environment, "DOCKER_HOST": f"unix://{tmp_path}/docker.sock"},
        cwd=cluster.root,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    server.stopped.set()
    server.shutdown()
    server.server_close()
    said = " ".join(ran.stderr.split())
    assert f"DOCKER_HOST=unix://{tmp_path}/docker.sock does not answer: no reply in time" in said
    assert ran.returncode == 3
