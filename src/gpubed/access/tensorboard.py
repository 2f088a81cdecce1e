"""Runs TensorBoard on the head, over the runs of a cluster, for as long as a tunnel is open."""

from __future__ import annotations

import re
import secrets
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from gpubed.access import tunnel
from gpubed.core.errors import GpubedError
from gpubed.nodes.cluster import Cluster

# Other accounts of the head could open its port, but for the path, which no argument shows.
_PROGRAM = """
import sys
from tensorboard import program
board = program.TensorBoard()
words = ["", "--logdir", sys.argv[1], "--host", sys.argv[2], "--port", "0", "--path_prefix"]
board.configure(argv=[*words, "/" + sys.stdin.readline().strip()])
print(board.launch(), flush=True)
sys.stdin.read()  # until the connection ends
"""


@contextmanager
def opened(cluster: Cluster) -> Iterator[tuple[str, tunnel.Tunnel]]:
    """Yield the URL of TensorBoard, and the tunnel that it goes through.

    Raises:
        GpubedError: It does not start, or the tunnel does not open.
    """
    shared, path = cluster.plan.spec.storage.shared.path, secrets.token_urlsafe()
    words = [f"{shared}/env/current/bin/python", "-c", _PROGRAM, f"{shared}/runs", tunnel.LOCAL]
    head = ["ssh", "-F", str(cluster.paths.ssh_config), cluster.allocation.head.name]
    with subprocess.Popen(
        [*head, shlex.join(words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as board:
        assert board.stdin  # noqa: S101
        assert board.stdout  # noqa: S101
        assert board.stderr  # noqa: S101
        try:
            board.stdin.write(f"{path}\n")
            board.stdin.flush()
            if not (told := re.match(r"http://[^/]+:(\d+)/", board.stdout.readline())):
                said = board.stderr.read().strip().splitlines()[-1:]
                why = f"TensorBoard does not start on the head: {' '.join(said)}"
                raise GpubedError(why, f"gpubed up {cluster.name}")
            with tunnel.through_ssh(cluster, int(told[1])) as way:
                yield f"http://{tunnel.LOCAL}:{way.port}/{path}/", way
        finally:
            board.terminate()
