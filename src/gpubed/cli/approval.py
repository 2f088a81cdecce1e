"""Shows the consequences of a run and asks for approval before it starts."""

from __future__ import annotations

from collections.abc import Sequence

from gpubed.cli.display import Display
from gpubed.cli.ui import UI
from gpubed.cluster import lost_state
from gpubed.core.errors import UsageError


def asking(ui: UI, display: Display, again: str, *, yes: bool) -> lost_state.Approve:
    """Return a function that asks before a run deletes or replaces resources.

    Args:
        ui: The output to ask on.
        display: The live display, paused while asking.
        again: The command with the option that approves beforehand.
        yes: Whether that option was given.
    """

    def approve(costs: Sequence[str]) -> None:
        with display.paused():
            for cost in costs:
                ui.mark("delete", cost)
            confirmed = ui.confirm("Go on?", yes=yes, default=False)
        if not confirmed:
            raise UsageError(f"not confirmed, so nothing was changed: {'; '.join(costs)}", again)

    return approve
