"""Copies a folder file by file, resuming what was interrupted, and checks each by SHA-256.

The manifest is what `sha256sum` writes, so a user can check and make it without gpubed. A copy has
its name only while it is whole; its file `.staged` says of which manifest.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath

# What job `imagenet` looks for, too.
MANIFEST, MARK = "SHA256SUMS", ".staged"
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
    """Returns the names of all files below a folder, relative to it, without manifest and mark."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(str(p.relative_to(folder)) for p in found if p.name not in (MANIFEST, MARK))


def read_manifest(text: str) -> dict[str, str]:
    """Returns the digest of each file; the format is sha256sum's, binary or text mode."""
    lines = (line for line in text.splitlines() if line.strip())
    # As paths: where `find` named the files, they begin with `./`.
    return {str(PurePath(line[66:])): line[:64].lower() for line in lines}


def write_manifest(digests: dict[str, str]) -> str:
    """Returns what `sha256sum` says of files with these digests, in the order of their names."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))


def stage(
    source: Path, target: Path, manifest: dict[str, str], mark: str, streams: int
) -> list[Copied]:
    """Makes another folder hold the files of a manifest, its mark and nothing else.

    What changes does so in a draft beside, which gets the folder's name when it is whole: a run
    that is stopped leaves no part of a dataset in place, and the next one goes on with its draft.
    A folder in place becomes the draft itself, since a disk may have no room for another.

    Args:
        source: Where the files are.
        target: The folder; one that is whole is not touched, as a training may be reading it.
        manifest: The digest of each file.
        mark: What tells this manifest from any other.
        streams: Files at once.

    Raises:
        OSError: A file cannot be read or written, as on a disk that is full.
    """
    draft = target.with_name(f".{target.name}.part")
    target.parent.mkdir(parents=True, exist_ok=True)
    with _alone_in(target.parent), ThreadPoolExecutor(streams) as pool:
        if target.is_symlink():
            # What it leads to is somebody's own, and not to be tidied up.
            target.unlink()
        in_place = target.exists()
        folder = target if in_place else draft
        there = set(_below(folder))
        known = [name for name in manifest if name in there]
        found = pool.map(lambda name: _is(folder / name, manifest[name]), known)
        right = {name for name, is_right in zip(known, found, strict=True) if is_right}
        is_all = right == manifest.keys() and there == {MARK, *right, *_folders(right)}
        if in_place and is_all and _mark(target) == mark:
            return [Copied(name, 0, right=True) for name in manifest]
        if in_place:
            shutil.rmtree(draft, ignore_errors=True)
            target.rename(draft)
        draft.mkdir(exist_ok=True)
        # Before anything is copied, which needs the room.
        _clear(draft, right | {_part(name) for name in manifest if name not in right})

        def bring(name: str) -> Copied:
            if name in right:
                return Copied(name, 0, right=True)
            return _bring(source, draft, name, manifest[name])

        done = list(pool.map(bring, manifest))
        if all(file.right for file in done):
            (draft / MARK).write_text(mark)
            draft.rename(target)
        return done


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Waits for other runs that stage into a folder; the lock goes with the process."""
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _below(folder: Path) -> Iterator[str]:
    """Names of all that is below a folder, what is in a folder before it; follows no link."""
    start = len(f"{folder}/")
    for root, folders, names in os.walk(folder, topdown=False):
        yield from (f"{root}/{name}"[start:] for name in (*names, *folders))


def _folders(names: Iterable[str]) -> set[str]:
    """The folders that files with these names are in."""
    found = {parent for name in names for parent in PurePath(name).parents}
    return {str(parent) for parent in found if parent.name}


def _is(path: Path, wanted: str) -> bool:
    """Whether a file of its own, and no link to one, has this digest."""
    return path.is_file() and not path.is_symlink() and digest(path) == wanted


def _mark(folder: Path) -> str:
    # What a machine that lost its power has left of it need not be text.
    return (folder / MARK).read_text(errors="replace")


def _clear(draft: Path, kept: set[str]) -> None:
    """Removes what is below a folder but these files, and the folders that they are in."""
    folders = _folders(kept)
    for name in _below(draft):
        path = draft / name
        if path.is_dir() and not path.is_symlink():
            if name not in folders:
                path.rmdir()
        elif name not in kept or path.is_symlink():
            path.unlink()


def _part(name: str) -> str:
    """What a file is called until it is whole."""
    path = PurePath(name)
    return str(path.with_name(f".{path.name}.part"))


def _bring(source: Path, draft: Path, name: str, wanted: str) -> Copied:
    """Copies a file, and goes on where a former run was interrupted."""
    here, part = draft / name, draft / _part(name)
    here.parent.mkdir(parents=True, exist_ok=True)
    copied = _append(source / name, part)
    right = digest(part) == wanted
    if not right and copied < part.stat().st_size:
        # The part that an earlier run left was not of this file.
        part.unlink()
        copied += _append(source / name, part)
        right = digest(part) == wanted
    if right:
        part.rename(here)
    else:
        part.unlink()
    return Copied(name, copied, right)


def _append(source: Path, part: Path) -> int:
    with source.open("rb") as reader, part.open("ab") as writer:
        there = min(writer.tell(), os.fstat(reader.fileno()).st_size)
        writer.truncate(there)
        reader.seek(there)
        shutil.copyfileobj(reader, writer, _BLOCK)
        writer.flush()
        os.fsync(writer.fileno())
        return writer.tell() - there
