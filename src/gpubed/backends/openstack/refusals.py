"""What a refusal that Pulumi's plugin hands on means: which option it is about."""

from __future__ import annotations

import re

from gpubed.core.errors import GpubedError, Refused

_MTU = re.compile(r"MTU is too big, maximum is (\d+)")


def explained(error: GpubedError) -> GpubedError | None:
    """Return the refusal in words of the specification; None of what needs none."""
    if found := _MTU.search(error.message):
        return Refused(
            "networks.experiment.mtu is more than the cloud's networks carry: "
            f"at most {found[1]} bytes",
            f"leave it out, and the cloud chooses, or write mtu: {found[1]}",
        )
    return None
