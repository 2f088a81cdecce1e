"""The embedded engine: Pulumi programs without the Pulumi CLI.

It serves the SDK's own protocol, runs dynamic providers in the SDK's own server, and keeps Pulumi's
own files. It refuses by name what only the Pulumi CLI does: binary plugins, other languages,
targets, aliases, transforms, hooks, imports, reading resources, stack references, assets, remote
components.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpubed.engines.embedded.engine import Engine
    from gpubed.engines.embedded.events import EventSink, LogEvent, ResourceEvent, Result
    from gpubed.engines.embedded.failures import ProgramFailed, Refusal, StepFailed

__all__ = [
    "Engine",
    "EventSink",
    "LogEvent",
    "ProgramFailed",
    "Refusal",
    "ResourceEvent",
    "Result",
    "StepFailed",
]

# gRPC reads this when it is loaded. Its own fork handlers end the process if another thread is in a
# call, and this process serves calls while it starts ssh, docker and Ansible.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")


_HOMES = {
    "Engine": "engine",
    "EventSink": "events",
    "LogEvent": "events",
    "ProgramFailed": "failures",
    "Refusal": "failures",
    "ResourceEvent": "events",
    "Result": "events",
    "StepFailed": "failures",
}


def __getattr__(name: str) -> Any:
    # Child processes run modules of this package; loading the whole engine there would cost each of
    # them a third of its start.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
