"""What the notebooks of a node's accounts do, also where one account is out to hide the others'.

Accounts have numbers, homes, processes and files of their own; JupyterLab is a STAND-IN.
"""

import http.server
import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
]
ALICE, BOB = 61001, 61002
KERNEL = {"id": "k", "last_activity": "2030-01-01T00:00:00Z", "execution_state": "busy"}


class Lab(http.server.BaseHTTPRequestHandler):
    """STAND-IN for JupyterLab's server."""

    answer = (200, b"")

    def do_GET(self):
        asked = (self.path, self.headers["Authorization"])
        status, text = (
            self.answer
            if asked == ("/x/api/kernels?no_track_activity=1", "token t")
            else (403, b"")
        )
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


@pytest.fixture
def port(monkeypatch):
    """The port of a server that has one kernel."""
    monkeypatch.setattr(Lab, "answer", (200, json.dumps([KERNEL]).encode()))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Lab)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.fixture
def look(use, monkeypatch, port):
    """Look at the notebooks of alice, whose server's file `write` makes, and of bob, who has one.

    What is returned are the kernels, and what could not be asked.
    """
    root = Path(tempfile.mkdtemp())
    root.chmod(0o755)
    names = {ALICE: "alice", BOB: "bob"}

    def account(uid):
        name = names[uid]
        return SimpleNamespace(pw_name=name, pw_dir=str(root / name), pw_uid=uid, pw_gid=uid)

    monkeypatch.setattr(pwd, "getpwuid", account)
    # As on nodes; a virtual environment and a checkout may lie where only root may go.
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    monkeypatch.setattr(use.jupyter, "__file__", shutil.copy(use.jupyter.__file__, root))

    def told(**changes):
        known = {"hostname": "*", "port": port, "secure": False, "base_url": "/x/", "token": "t"}
        return json.dumps({**known, **changes})

    @contextmanager
    def server(uid, write):
        """A process of the account, as its server, and the file that it left in its home."""
        folder = root / names[uid] / ".local/share/jupyter/runtime"
        folder.mkdir(parents=True, exist_ok=True)
        mine = {"user": uid, "group": uid, "extra_groups": []}
        with subprocess.Popen(("sleep", "60"), **mine) as process:
            try:
                write(folder / f"jpserver-{process.pid}.json", told, process.pid)
                home = root / names[uid]
                subprocess.run(("chown", "-hR", f"{uid}:{uid}", home), check=True)
                home.chmod(0o700)
                yield
            finally:
                process.kill()

    def look(write, *, bob=True):
        mute = []
        with server(ALICE, write):
            if not bob:
                return use.machine._kernels(use.processes.every(), mute), mute
            with server(BOB, right):
                return use.machine._kernels(use.processes.every(), mute), mute

    yield look
    shutil.rmtree(root)


def right(path, told, pid):
    path.write_text(told(pid=pid))


def changed(**changes):
    write = lambda path, told, pid: path.write_text(told(**{"pid": pid, **changes}))  # noqa: E731
    write.__name__ = "-".join(changes)
    return write


def users(found):
    return sorted(kernel[0] for kernel in found.values())


def test_kernels_are_asked_for_with_the_servers_own_token(look):
    found, mute = look(right, bob=False)
    assert list(found.values()) == [["alice", KERNEL["last_activity"], "busy"]]
    assert mute == []


def brackets(path, *_):
    path.write_text("[" * 200_000)


def shadow(path, *_):
    path.symlink_to("/etc/shadow")


def endless(path, *_):
    path.symlink_to("/dev/zero")


def pipe(path, *_):
    os.mkfifo(path)


def silent(path, told, pid):
    """Nobody takes what has connected."""
    listener = socket.create_server(("127.0.0.1", 0))
    path.write_text(told(pid=pid, port=listener.getsockname()[1]))
    listener.detach()


@pytest.mark.parametrize(
    "write",
    [*(brackets, shadow, endless, pipe, silent), changed(base_url="/y/\r\nHost: z")],
    ids=lambda write: write.__name__,
)
def test_a_server_that_does_not_tell_is_named_with_its_account_and_hides_no_other(look, write):
    began = time.monotonic()
    found, mute = look(write)
    assert time.monotonic() - began < 10
    assert users(found) == ["bob"]
    [said] = mute
    assert said.startswith("JupyterLab of alice does not tell")
    assert said.isprintable()
    assert len(said) <= 300
