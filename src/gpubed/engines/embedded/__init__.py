"""The embedded engine: Pulumi programs without the Pulumi CLI.

It serves the SDK's own protocol, runs dynamic providers in the SDK's own server, and keeps Pulumi's
own files. Features that only the Pulumi CLI has, such as binary plugins, are refused by name.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpubed.engines.embedded.engine import Engine
    from gpubed.engines.embedded.events import (
        EventSink,
        LogEvent,
        ProgramFailed,
        Refusal,
        ResourceEvent,
        Result,
        StepFailed,
    )

__all__ = ["Engine", "EventSink", "LogEvent", "ProgramFailed", "Refusal"]
__all__ += ["ResourceEvent", "Result", "StepFailed"]

# gRPC reads this when it is loaded. Its own fork handlers end the process if another thread is in a
# call, and this process serves calls while it starts ssh, docker and Ansible.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")


def __getattr__(name: str) -> Any:
    # Child processes run a module of this package; loading the whole engine would make their
    # start half as long again.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "engine" if name == "Engine" else "events"
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
