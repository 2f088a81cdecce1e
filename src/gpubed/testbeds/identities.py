"""The UUID of a cluster, kept beside its state: it finds again what outlives the state.

Everything on a testbed carries it. A cluster whose Pulumi state is lost, or whose data was
kept by `gpubed down --keep-data`, gets the same UUID at its next `up` and takes over what is
there.
"""

from __future__ import annotations

import shlex
import uuid

from gpubed.core import files, reading
from gpubed.core.errors import UsageError
from gpubed.core.paths import ClusterPaths


def kept(paths: ClusterPaths) -> str | None:
    """Return the UUID that is kept of a cluster; None when there is none.

    Raises:
        Unreadable: The file holds something else.
    """
    fix = (
        f"rm {shlex.quote(str(paths.uuid))}   (then: gpubed audit {paths.name} tells what exists, "
        "and the uuid that it carries)"
    )
    try:
        found = reading.file(paths.uuid, fix)
    except reading.Missing:
        return None
    try:
        return str(uuid.UUID(found.text().strip()))
    except ValueError:
        raise found.refusal("it holds no UUID") from None


def forget(paths: ClusterPaths) -> None:
    """Forget a cluster's UUID, where nothing was made or taken over under it."""
    paths.uuid.unlink(missing_ok=True)


def keep(paths: ClusterPaths, wanted: str) -> None:
    """Keep a cluster's UUID.

    Raises:
        UsageError: It is none.
    """
    try:
        text = str(uuid.UUID(wanted))
    except ValueError:
        raise UsageError(f"{wanted!r} is no UUID", f"gpubed audit {paths.name}") from None
    paths.state.mkdir(parents=True, exist_ok=True)
    files.write(paths.uuid, f"{text}\n".encode(), durable=True)
