"""Copies of the specifications that were applied: what they led to is found by them again.

A specification may be edited, or lost, while what was made by it is still there. So each is kept
beside the cluster's state, by its testbed: the one that was applied last, and until an `up` comes
to its end those of the runs before it.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Collection
from pathlib import Path

from gpubed.core import files, located
from gpubed.core.paths import ClusterPaths
from gpubed.spec import backend_config


def keep(paths: ClusterPaths, backend: str) -> str:
    """Keep a copy of the specification that is about to be applied on a testbed.

    The one before stays until `forget_attempts`: a run that was killed may have begun what no
    state knows, and what only that specification names.

    Returns:
        The digest of the copy.
    """
    files.make(paths.testbeds)
    text, copy = files.read(paths.spec, located.MAX_BYTES), last(paths, backend)
    if copy.is_file() and (before := files.read(copy, located.MAX_BYTES)) != text:
        attempts = _attempts(paths)
        files.make(attempts)
        # By its content: the same one, applied again and again, is one.
        files.write(attempts / f"{backend}-{_digest(before)}.yml", before, durable=True)
    files.write(copy, text, durable=True)  # what it led to is found by it alone
    return _digest(text)


def digest(copy: Path) -> str:
    """Return what tells a copy from others."""
    return _digest(files.read(copy, located.MAX_BYTES))


def last(paths: ClusterPaths, backend: str) -> Path:
    """Return where the specification is kept that was applied last on a testbed."""
    return paths.testbeds / f"{backend}.yml"


def every(paths: ClusterPaths, backend: str) -> list[Path]:
    """Return where specifications are kept that may have led to what is on a testbed."""
    there = [last(paths, backend), *_attempts_on(paths, backend)]
    return [copy for copy in there if copy.is_file()]


def forget_attempts(paths: ClusterPaths, backend: str, but: Collection[Path] = ()) -> None:
    """Forget the specifications of former runs: what they began has been adopted or removed.

    Args:
        paths: The cluster's paths.
        backend: The testbed's kind.
        but: Those that led elsewhere.
    """
    for copy in _attempts_on(paths, backend):
        if copy not in but:
            copy.unlink(missing_ok=True)


def put_back(paths: ClusterPaths) -> str:
    """Return the command that brings a lost specification back; empty where no copy was kept."""
    found = [path for name in backend_config.names() if (path := last(paths, name)).is_file()]
    copy = max(found, key=lambda path: path.stat().st_mtime_ns, default=None)
    if copy is None:
        return ""
    return put_back_command(paths, copy)


def put_back_command(paths: ClusterPaths, copy: Path) -> str:
    """Return the command that makes a copy the specification; one that is there is set aside."""
    folder, target = paths.inventory, shlex.quote(str(paths.spec))
    made = "" if folder.is_dir() else f"mkdir -p {shlex.quote(str(folder))} && "
    aside = "--backup=numbered " if paths.spec.exists() else ""
    return f"{made}cp {aside}{shlex.quote(str(copy))} {target}"


def forget_command(copy: Path) -> str:
    """Return the command that says that nothing of a cluster is where a copy led."""
    return f"rm {shlex.quote(str(copy))}"


def _attempts(paths: ClusterPaths) -> Path:
    return paths.testbeds / "attempts"


def _attempts_on(paths: ClusterPaths, backend: str) -> list[Path]:
    return sorted(_attempts(paths).glob(f"{backend}-*.yml"))


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:12]
