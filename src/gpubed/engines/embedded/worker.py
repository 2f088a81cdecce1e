"""Runs the SDK's dynamic provider server as a child that cannot outlive the engine.

`python -m gpubed.engines.embedded.worker <socket>`

The server executes whatever it receives (`dill.loads`), and the SDK binds it to a loopback TCP
port, which every user of this machine can reach. Here it listens on a socket in a folder that only
this user may enter.
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
    """Serve until ended; print a line once the server listens."""
    child.attach()
    # Providers may be modules of the project; at the path's end, these shadow none of Python's.
    sys.path.append(str(Path.cwd()))
    here, make = f"unix:{sys.argv[1]}", grpc.server

    def server(_pool: Any, **options: Any) -> Any:
        # The SDK allows only four calls at once.
        made = make(ThreadPoolExecutor(int(os.environ[child.PROVIDER_THREADS])), **options)
        listen = made.add_insecure_port
        made.add_insecure_port = lambda address: listen(here)
        return made

    grpc.server = server
    runpy.run_module("pulumi.dynamic", run_name="__main__")


if __name__ == "__main__":
    main()
