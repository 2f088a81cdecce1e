"""What is known of a cluster, as tests set it."""

from pathlib import Path

from gpubed.core import record
from gpubed.testbeds import history, registry


def mark(paths, **facts):
    """Set facts of a cluster's record."""
    with record.changed(paths) as known:
        for name, value in facts.items():
            setattr(known, name, value)


def apply(paths, backend="local"):
    """Keep the specification as `up` does that applies it; return the copy."""
    history.note(registry.bound(backend, paths), applied=True)
    return last(paths, backend)


def last(paths, backend="") -> Path:
    """Return the specification that was applied last."""
    return paths.specifications / record.read(paths).last(backend)
