"""No secret in state, logs, inventory or process list; and the search can find one."""

import subprocess
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.docker]


def secrets(cluster):
    """Return every secret of the cluster and its project, as text that would betray it."""
    token = (cluster.state / "secrets" / "jupyterlab_token").read_text().strip()
    key = (cluster.state / "secrets" / "id_ed25519").read_text().splitlines()[2]
    passphrase = (cluster.root / ".gpubed" / "pulumi" / "passphrase").read_text().strip()
    return {"token": token, "private key": key, "passphrase": passphrase}


def files_with(cluster, text):
    """Return the project's files that hold a text, but for the secrets' own places."""
    own = {cluster.state / "secrets", cluster.root / ".gpubed" / "pulumi" / "passphrase"}
    found = []
    for path in cluster.root.rglob("*"):
        if (
            path.is_file()
            and not own & {path, *path.parents}
            and text.encode() in path.read_bytes()
        ):
            found.append(path)
    return found


def processes_with(cluster, text):
    """Return the command lines, here and on the nodes, that hold a text."""
    found = [c for p in Path("/proc").iterdir() if text in (c := _read(p / "cmdline"))]
    for name in ("node-0", "node-1", "node-2"):
        found += [
            line for line in cluster.node(name, "ps -eww -o args").splitlines() if text in line
        ]
    return found


def _read(path):
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""


@pytest.mark.parametrize("kind", ["token", "private key", "passphrase"])
def test_no_secret_leaves_its_file(cluster, kind):
    secret = secrets(cluster)[kind]
    assert len(secret) > 20
    assert files_with(cluster, secret) == []
    assert processes_with(cluster, secret) == []


def test_no_secret_is_an_argument_while_roles_run(cluster):
    """Processes of local nodes are processes of this machine, too."""
    wanted = secrets(cluster).values()
    run = cluster.start("configure", cluster.name, "--tags", "jupyterlab", stderr=subprocess.PIPE)
    seen = set()
    while run.poll() is None:
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            seen.add(_read(process))
        time.sleep(0.01)
    assert run.returncode == 0, run.stderr.read()
    assert any("ansible-playbook" in line for line in seen)
    assert [line for line in seen if any(secret in line for secret in wanted)] == []


def test_nodes_do_not_log_the_token(cluster):
    token = secrets(cluster)["token"]
    assert token not in cluster.node("head", "sudo journalctl --no-pager")
    # From a file: sudo logs the command lines that it runs.
    search = "sudo grep -rlsF -f /dev/stdin /etc /home /var/log /shared/notebooks"
    holders = cluster.node("head", search, token).split()
    assert any(path.startswith("/etc/gpubed/jupyterlab/") for path in holders)
    own = ("/etc/gpubed/jupyterlab/", "/home/jupyter/.local/share/jupyter/runtime/")
    assert [path for path in holders if not path.startswith(own)] == []
    readable = [f"sudo -u nobody test -r {path} && echo {path}; true" for path in holders]
    assert cluster.node("head", "; ".join(readable)) == ""


def test_secret_files_are_private(cluster):
    folder = cluster.state / "secrets"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
