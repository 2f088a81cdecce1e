"""Writes cpio archives in the `newc` format, which the kernel unpacks as initial RAM disks.

Format: Documentation/driver-api/early-userspace/buffer-format.rst of the Linux sources.
"""

import stat
from dataclasses import dataclass

_ALIGNMENT = 4


@dataclass(frozen=True)
class Entry:
    """A file, a folder or a symbolic link (whose content is its target)."""

    path: str
    content: bytes = b""
    mode: int = stat.S_IFREG | 0o644
    owner: int = 0


def archive(entries: list[Entry]) -> bytes:
    """Return an archive; archives one after the other are one to the kernel."""
    every = [*entries, Entry("TRAILER!!!", mode=0)]
    parts = b"".join(_member(number, entry) for number, entry in enumerate(every, start=1))
    return _padded(parts, 512)


def folders(paths: list[str]) -> list[Entry]:
    """Return the folders that hold these paths, outer ones first."""
    found = {parent for path in paths for parent in _parents(path)}
    return [Entry(path, mode=stat.S_IFDIR | 0o755) for path in sorted(found)]


def _parents(path: str) -> list[str]:
    words = path.split("/")[:-1]
    return ["/".join(words[: end + 1]) for end in range(len(words))]


def _member(number: int, entry: Entry) -> bytes:
    name = entry.path.encode() + b"\0"
    fields = (
        number,
        entry.mode,
        entry.owner,
        entry.owner,
        1,  # links
        0,  # time of change
        len(entry.content),
        0,  # device that holds it, major and minor
        0,
        0,  # device that it is, major and minor
        0,
        len(name),
        0,  # checksum, unused
    )
    header = b"070701" + b"".join(b"%08X" % field for field in fields)
    return _padded(header + name) + _padded(entry.content)


def _padded(data: bytes, alignment: int = _ALIGNMENT) -> bytes:
    return data + bytes(-len(data) % alignment)
