"""What others on the controller can reach while Pulumi works, and what helps against it."""

from __future__ import annotations

from collections.abc import Sequence

from gpubed.engines.stack import EngineName
from gpubed.testbeds.base import Backend


def warnings(engine: EngineName, backend: Backend | None) -> Sequence[str]:
    """Say what lies open during a run, and what helps; nothing with the embedded engine.

    Args:
        backend: Whose cluster it is; None where it is any.
    """
    if engine == "embedded":
        return []
    needed = backend is not None and backend.engine_required == "cli"
    instead = (
        "run it where nobody else logs in, or in a container or network namespace of its own"
        if needed
        else "where others log in: --engine embedded"
    )
    return [
        "while Pulumi's CLI runs, other users of this machine can reach its SDK on loopback and "
        f"become you; {instead} (docs/concepts/security.md)"
    ]
