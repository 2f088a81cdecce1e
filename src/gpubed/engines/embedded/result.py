"""What a finished operation hands back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpubed.engines.embedded.events import ResourceEvent


@dataclass(frozen=True)
class Result:
    """The outcome of a preview, up, refresh or destroy.

    Attributes:
        changes: How many resources took each operation, `same` included; the halves of
            a replacement are steps, but count as one `replace`.
        steps: The last event of every step, in order of completion.
        outputs: The stack's outputs; secrets read `[secret]`.
        seconds: Wall time of the whole operation.
    """

    changes: Mapping[str, int]
    steps: tuple[ResourceEvent, ...]
    outputs: Mapping[str, Any]
    seconds: float
