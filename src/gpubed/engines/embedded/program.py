"""Runs the stack's Python program against the engine, as Pulumi's language host does.

`python -P -m gpubed.engines.embedded.program <address> <project> <stack> <root> <entry>
<parallel> <preview>` with the configuration in `PULUMI_CONFIG` and `PULUMI_CONFIG_SECRET_KEYS`.
The exit code is 0, 1 after a `RunError`, 32 after any other exception; both are logged.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import linecache
import logging
import runpy
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor

import pulumi
import pulumi.runtime

from gpubed.engines.embedded import child

_LOGGED = 32
_FRAMES = 10


def main() -> int:
    """Run the program in the current directory and return the exit code."""
    child.attach()
    address, project, stack, root, entry, parallel, preview = sys.argv[1:]
    pulumi.runtime.set_all_config(
        pulumi.runtime.get_config_env(), pulumi.runtime.get_config_secret_keys_env()
    )
    settings = pulumi.runtime.Settings(
        project=project,
        stack=stack,
        monitor=address,
        engine=address,
        parallel=int(parallel),
        dry_run=preview == "true",
        organization="organization",
        root_directory=root,
    )
    pulumi.runtime.configure(settings)
    # The SDK looks up where each resource is declared. The source files need not be read again for
    # that, and the innermost frames of the call stack, which gRPC carries each time, are enough.
    linecache.checkcache = lambda *_: None
    traceback.extract_stack = functools.partial(traceback.extract_stack, limit=_FRAMES)
    gc.set_threshold(50_000)  # most objects of a short process live to its end
    # The engine drops debug messages, and each one is a blocking call.
    pulumi.log.debug = lambda *_args, **_options: None
    sys.argv = [entry]
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    # Every pending registration blocks one thread.
    with ThreadPoolExecutor(4 * int(parallel)) as executor:
        return _run(entry, executor)


def _run(entry: str, executor: ThreadPoolExecutor) -> int:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.set_default_executor(executor)
    try:
        loop.run_until_complete(pulumi.runtime.run_in_stack(lambda: _program(entry)))
    except pulumi.RunError as error:
        pulumi.log.error(str(error))
        return 1
    except Exception:
        pulumi.log.error(f"Program failed with an unhandled exception:\n{_own_frames()}")
        return _LOGGED
    return 0


async def _program(entry: str) -> None:
    runpy.run_path(entry, run_name="__main__")
    # Lets the SDK see all registrations first; else it looks at all unfinished outputs whenever one
    # of them finishes.
    await asyncio.sleep(0)


def _own_frames() -> str:
    """Format the exception from the first frame of the user's code on."""
    frames = traceback.extract_tb(sys.exc_info()[2])
    inner = [i for i, frame in enumerate(frames) if frame.name == "<module>"]
    limit = inner[0] - len(frames) if inner else None
    return traceback.format_exc(limit=limit)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(code)
