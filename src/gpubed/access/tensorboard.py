"""Runs TensorBoard on the head for the runs of a cluster while a tunnel is open."""

from __future__ import annotations

import re
import secrets
import shlex
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from gpubed.access import tunnel
from gpubed.core.errors import GpubedError
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.ssh import in_sh

_STARTS_WITHIN_S = 90.0
# A secret path keeps other accounts of the head out of TensorBoard's port; it is read from stdin,
# because arguments are visible. `load_fast` would open another port without that path.
_PROGRAM = """
import sys
from tensorboard import program
board = program.TensorBoard()
words = ["", "--logdir", sys.argv[1], "--host", sys.argv[2], "--port", "0", "--load_fast", "false"]
board.configure(argv=[*words, "--path_prefix", "/" + sys.stdin.readline().strip()])
print(board.launch(), flush=True)
sys.stdin.read()  # until the connection ends
"""
_URL = re.compile(r"http://[^/]+:(\d+)/")


@contextmanager
def opened(cluster: Cluster, again: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the URL of TensorBoard, and a function that raises `GpubedError` once it has ended.

    Raises `GpubedError`, with the command `again` as hint, if TensorBoard does not start or the
    tunnel does not open.
    """
    shared, path = cluster.plan.spec.storage.shared.path, secrets.token_urlsafe()
    words = [f"{shared}/env/current/bin/python", "-c", _PROGRAM, f"{shared}/runs", tunnel.LOCAL]
    head = ["ssh", "-F", str(cluster.paths.ssh_config), "-o", "BatchMode=yes"]
    command = [*head, cluster.allocation.head.name, in_sh(shlex.join(words))]
    pipe = subprocess.PIPE
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True) as board,
    ):
        assert board.stdin  # noqa: S101
        assert board.stdout  # noqa: S101
        late = threading.Timer(_STARTS_WITHIN_S, board.terminate)
        late.start()
        try:
            with suppress(BrokenPipeError):  # ssh has ended, and `errors` has the reason
                board.stdin.write(f"{path}\n")
                board.stdin.flush()
            url = next(filter(None, map(_URL.match, board.stdout)), None)
            late.cancel()
            if url is None:
                errors.seek(0)
                why = "".join(errors.readlines()[-1:]).strip() or "it takes too long"
                raise GpubedError(f"TensorBoard does not start on the head: {why}", again)
            with tunnel.through_ssh(cluster, int(url[1])) as way:

                def wait() -> None:
                    while board.poll() is None:
                        way.require_open(again)
                        time.sleep(0.5)
                    raise GpubedError("TensorBoard has ended on the head", again)

                yield f"http://{tunnel.LOCAL}:{way.port}/{path}/", wait
        finally:
            late.cancel()
            board.terminate()
