"""Runs the SDK's dynamic provider server as a child that cannot outlive the engine.

`python -m gpubed.engines.embedded.worker <socket>`

The server runs whatever it is sent (`dill.loads`), and the SDK lets it listen on a TCP
port of the loopback interface, which every user of this machine may connect to. Here it
listens on a socket in a folder that only this user may enter.
"""

from __future__ import annotations

import os
import runpy
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]

from gpubed.engines.embedded import child


def main() -> None:
    """Start the server; it prints a line when it listens, and serves until it is ended."""
    child.attach()
    # Providers may be in modules of the project; appended, these hide none of Python's.
    sys.path.append(str(Path.cwd()))
    here, make = f"unix:{sys.argv[1]}", grpc.server

    def server(_pool: Any, **options: Any) -> Any:
        # The SDK allows four calls at once, however many nodes a cluster has.
        made = make(ThreadPoolExecutor(int(os.environ[child.PROVIDER_THREADS])), **options)
        listen = made.add_insecure_port
        made.add_insecure_port = lambda address: listen(here)
        return made

    grpc.server = server
    runpy.run_module("pulumi.dynamic", run_name="__main__")


if __name__ == "__main__":
    main()
