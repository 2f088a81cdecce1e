"""The note that an engine has begun to change nodes of a cluster, or their links.

Until roles and checks have followed, nobody knows what nodes are like: an engine that was ended
between two of them leaves links of two rates. So the note is made before the first is changed,
in the file that tells of an unfinished configuration, and goes once that came to its end.
"""

from __future__ import annotations

from gpubed.core import files, reading
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths
from gpubed.nodes import allocation

_BY_AN_ENGINE = b"nodes\n"


def note(paths: ClusterPaths) -> None:
    """Note that nodes which the cluster has are about to be changed."""
    if not is_noted(paths):
        files.write(paths.unfinished, _BY_AN_ENGINE)


def is_noted(paths: ClusterPaths) -> bool:
    """Say whether nodes were changed and no configuration has come to its end since."""
    try:
        return reading.file(paths.unfinished).data == _BY_AN_ENGINE
    except reading.Unreadable:
        return False


def forget(paths: ClusterPaths) -> None:
    """Forget the note, since nothing was changed."""
    paths.unfinished.unlink(missing_ok=True)


def has_nodes(paths: ClusterPaths) -> bool:
    """Say whether the cluster was granted nodes that somebody may use meanwhile."""
    return bool(_names(paths))


def has_node(paths: ClusterPaths, name: str) -> bool:
    """Say whether a node is one of them; one that is new is used by nobody yet."""
    return name in _names(paths)


def _names(paths: ClusterPaths) -> set[str]:
    try:
        return {node.name for node in allocation.load(paths.allocation).nodes}
    except GpubedError:  # nobody can use what none can read
        return set()
