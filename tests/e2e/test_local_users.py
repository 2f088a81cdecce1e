"""Other users of the controller: what gpubed and its children listen on lets none of them in."""

import os
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from support import listening

pytestmark = [pytest.mark.e2e, pytest.mark.docker]


def watch(cluster, verb, *words):
    """Run a verb to its end; return the TCP ports that it or its children listened on, and for
    each socket whether another user was let in."""
    ports, sockets = set(), {}
    process = cluster.start(verb, cluster.name, *words, stderr=subprocess.PIPE)
    while process.poll() is None:
        family = [
            process.pid,
            *(p.pid for p in psutil.Process(process.pid).children(recursive=True)),
        ]
        ports |= listening.tcp(family)
        for path in listening.unix(family) - set(sockets):
            try:
                sockets[path] = listening.lets_in(path, listening.NOBODY)
            except (FileNotFoundError, ConnectionRefusedError):
                continue  # it has just been closed
        time.sleep(0.02)
    return ports, sockets, process.stderr.read()


@pytest.mark.skipif(os.geteuid() != 0, reason="asking as another user needs root")
def test_no_other_user_gets_in(bare):
    ports, sockets, said = watch(bare, "up", "--engine", "embedded")
    assert "created Node node-1" in said
    assert ports == set()
    assert {"engine", "provider"} <= {Path(path).name for path in sockets}
    assert not any(sockets.values()), sockets

    # Ansible and mitogen; bare nodes come as far as the first role.
    ports, sockets, _ = watch(bare, "configure", "--limit", "node-1")
    assert ports == set()
    assert sockets
    assert not any(sockets.values()), sockets
