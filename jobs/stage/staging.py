"""Copies a folder file by file, resuming what was interrupted, and checks each by SHA-256.

The manifest is what `sha256sum` writes, so a user can check and make it without gpubed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

MANIFEST = "SHA256SUMS"
_BLOCK = 8 * 2**20


@dataclass(frozen=True)
class Copied:
    """What came of one file; `bytes` were read from the source, 0 when it was there already."""

    name: str
    bytes: int
    right: bool


def digest(path: Path) -> str:
    """Returns a file's SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files(folder: Path) -> list[str]:
    """Returns the names of all files below a folder, relative to it, without the manifest."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(str(p.relative_to(folder)) for p in found if p.name != MANIFEST)


def read_manifest(text: str) -> dict[str, str]:
    """Returns the digest of each file; the format is sha256sum's, binary or text mode."""
    lines = (line for line in text.splitlines() if line.strip())
    return {line[66:]: line[:64].lower() for line in lines}


def stage(source: Path, target: Path, manifest: dict[str, str], streams: int) -> list[Copied]:
    """Brings the files of a manifest to another folder.

    A file of the right content stays as it is; one that was interrupted goes on where it ended.
    """

    def bring(name: str) -> Copied:
        wanted, here = manifest[name], target / name
        if here.is_file() and digest(here) == wanted:
            return Copied(name, 0, right=True)
        here.parent.mkdir(parents=True, exist_ok=True)
        draft = here.with_name(f".{here.name}.part")
        copied = _append(source / name, draft)
        right = digest(draft) == wanted
        if not right and copied < draft.stat().st_size:
            # The part that an earlier run left was not of this file.
            draft.unlink()
            copied += _append(source / name, draft)
            right = digest(draft) == wanted
        if right:
            draft.rename(here)
        else:
            draft.unlink()
        return Copied(name, copied, right)

    with ThreadPoolExecutor(streams) as pool:
        return list(pool.map(bring, manifest))


def _append(source: Path, draft: Path) -> int:
    with source.open("rb") as reader, draft.open("ab") as writer:
        there = min(writer.tell(), os.fstat(reader.fileno()).st_size)
        writer.truncate(there)
        reader.seek(there)
        shutil.copyfileobj(reader, writer, _BLOCK)
        writer.flush()
        os.fsync(writer.fileno())
        return writer.tell() - there
