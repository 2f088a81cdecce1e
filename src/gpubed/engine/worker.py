"""Runs the SDK's dynamic provider server as a child that cannot outlive the engine.

`python -m gpubed.engine.worker <engine address>`
"""

from __future__ import annotations

import functools
import os
import runpy
from concurrent import futures

from gpubed.engine import lifeline


def main() -> None:
    """Starts the server; it prints its port and serves until it is ended."""
    lifeline.attach()
    # The SDK allows four calls at once, however many nodes a cluster has.
    pool = functools.partial(futures.ThreadPoolExecutor)
    futures.ThreadPoolExecutor = lambda max_workers=None: pool(  # type: ignore
        max_workers=max(max_workers or 0, int(os.environ[lifeline.PROVIDER_THREADS]))
    )
    runpy.run_module("pulumi.dynamic", run_name="__main__")


if __name__ == "__main__":
    main()
