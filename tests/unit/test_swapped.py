"""A host key that is swapped while somebody is at work there: nobody logs in again.

The host is a STAND-IN on loopback; those who come to it are real.
"""

import getpass
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import paramiko
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from gpubed.cluster import handover
from gpubed.configuration import configure
from gpubed.nodes import allocation
from gpubed.nodes.cluster import Cluster
from gpubed.nodes.ssh import SSH, HostKeyMismatch
from gpubed.testbeds.specification import load_plan
from support.answering import Host
from support.samples import granted_cluster

pytestmark = pytest.mark.process


def text(key):
    return f"{key.get_name()} {key.get_base64()}"


@pytest.fixture
def host():
    made = Host()
    yield made
    made.close()


@pytest.fixture
def cluster(tmp_path, host, monkeypatch):
    """A cluster whose head is that host."""
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    monkeypatch.setenv("ANSIBLE_SSH_CONTROL_PATH_DIR", str(tmp_path / "cp"))
    paths = granted_cluster(tmp_path)
    granted = allocation.load(paths.allocation)
    head = granted.head.model_copy(
        update={
            "control_address": "127.0.0.1",
            "port": host.port,
            "user": getpass.getuser(),
            "host_keys": (text(host.own),),
        }
    )
    granted = granted.model_copy(update={"nodes": (head,)})
    paths.allocation.write_text(granted.model_dump_json())
    paths.secrets.mkdir()
    key = ed25519.Ed25519PrivateKey.generate()
    form = (
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    paths.private_key.write_bytes(key.private_bytes(*form))
    paths.private_key.chmod(0o600)
    handover.render(Cluster(paths, load_plan(paths.spec), granted))
    return paths


@pytest.fixture
def nobody_came(host):
    """After the swap, nobody logged in."""
    yield
    assert host.logins, "somebody was there before"
    assert host.other not in host.logins


@pytest.mark.usefixtures("nobody_came")
def test_gpubed_itself(cluster, host):
    with SSH(allocation.load(cluster.allocation).head, cluster) as ssh:
        assert ssh.run("echo here").stdout == "here\n"
        host.swap()
        with pytest.raises(HostKeyMismatch) as caught:
            ssh.run("echo there")
    assert paramiko.PKey.get_fingerprint(host.own) != paramiko.PKey.get_fingerprint(host.other)
    assert "--refresh" in caught.value.hint


@pytest.mark.usefixtures("nobody_came")
def test_a_shell(cluster, host, tmp_path):
    """OpenSSH proposes to remove the key that is known; the last word is ours."""

    def come():
        return subprocess.run(
            [Path(sys.executable).with_name("gpubed"), "ssh", "lab", "node-0", "--", "echo here"],
            env={**os.environ, "GPUBED_ROOT": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )

    assert come().stdout == "here\n"
    host.swap()
    refused = come()
    assert refused.returncode == 255
    assert "Host key verification failed" in refused.stderr
    last = " ".join(refused.stderr.partition("error: node-0")[2].split())
    assert "presents the host key SHA256:" in last
    assert "whatever OpenSSH proposes: if you reinstalled it: gpubed up lab --refresh" in last
    assert "docs/how-to/host-keys.md" in last


AT_WORK = "    - ansible.builtin.command: sleep 30"
BOOK = """
- hosts: node-0
  gather_facts: false
  vars: {{ansible_python_interpreter: {1}}}
  tasks:
    - ansible.builtin.command: touch {0}/first
{2}
    - ansible.builtin.wait_for: {{path: {0}/swapped, timeout: 30, sleep: 1}}
      delegate_to: localhost
      connection: local
    - ansible.builtin.meta: reset_connection
    - ansible.builtin.command: touch {0}/second
"""


@pytest.mark.usefixtures("nobody_came")
@pytest.mark.parametrize(("strategy", "task"), [("gpubed_linear", AT_WORK), ("linear", "")])
def test_configure(cluster, host, tmp_path, monkeypatch, strategy, task):
    """It names both keys, though Ansible does not say which it saw."""
    monkeypatch.setenv("GPUBED_ANSIBLE_STRATEGY", strategy)
    monkeypatch.setenv("ANSIBLE_HOST_KEY_CHECKING", "False")  # as ansible-runner does
    book = tmp_path / "book.yml"
    book.write_text(BOOK.format(tmp_path, sys.executable, task))

    def swap():
        while not (tmp_path / "first").exists():
            time.sleep(0.1)
        host.swap()
        (tmp_path / "swapped").touch()

    threading.Thread(target=swap, daemon=True).start()
    with pytest.raises(HostKeyMismatch) as caught:
        configure.configure(cluster, playbook=str(book))
    assert "node-0" in caught.value.message
    assert (tmp_path / "first").exists()
    assert not (tmp_path / "second").exists()
