"""Reads and writes the state files and the metrics of a node's programs."""

import fcntl
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple


class Figure(NamedTuple):
    """A sample for the cluster's monitoring; those of one name have the same labels."""

    name: str
    value: float
    labels: Mapping[str, object] = {}


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold a lock while a file is read and replaced."""
    lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def replace(path: Path, text: str) -> None:
    """Write a file atomically."""
    draft = path.with_suffix(".new")
    draft.write_text(text, encoding="utf-8")
    draft.chmod(0o644)  # the caller's umask may be another
    draft.rename(path)


def keep(path: Path, spare: Path, text: str) -> None:
    """Write a file; if the disk is full or read-only, the spare in memory."""
    try:
        replace(path, text)
    except OSError as error:
        sys.stderr.write(f"{spare} is written instead of {path}: {error}\n")
        replace(spare, text)
    else:
        spare.unlink(missing_ok=True)


def publish(path: Path, figures: Iterable[Figure]) -> None:
    """Write metrics for the cluster's monitoring, if there is one; failures are only printed."""
    if not path.parent.is_dir():
        return
    try:
        # Debian's package, which role monitoring installs.
        from prometheus_client import CollectorRegistry, Gauge, generate_latest
    except ImportError as error:
        sys.stderr.write(f"no figures for monitoring: {error}\n")
        return
    registry, known = CollectorRegistry(), dict[str, Gauge]()
    for name, value, labels in figures:
        # Names of accounts and devices may not be UTF-8.
        told = {key: str(one).encode(errors="replace").decode() for key, one in labels.items()}
        try:
            number = float(value)
            if name not in known:
                known[name] = Gauge(name, name, [*told], registry=registry)
            (known[name].labels(**told) if told else known[name]).set(number)
        except ValueError as error:
            sys.stderr.write(f"no figure {name} for monitoring: {error}\n")
    try:
        replace(path, generate_latest(registry).decode())
    except OSError as error:
        sys.stderr.write(f"no figures for monitoring: {error}\n")
