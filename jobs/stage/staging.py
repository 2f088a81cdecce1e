"""Copies a folder file by file, resuming after interruptions, and checks each file by SHA-256.

The manifest has the format of `sha256sum`, so a user can check and make it without gpubed. A copy
has its name only while it is complete; its file `.staged` names the manifest by its digest.
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

# Job `imagenet` reads these names, too.
MANIFEST, MARK = "SHA256SUMS", ".staged"
_BLOCK = 8 * 2**20


@dataclass(frozen=True)
class Copied:
    """The result for one file; `bytes` were read from the source, 0 if it was there already."""

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
    # Normalized, as names that come from `find` begin with `./`.
    return {str(PurePath(line[66:])): line[:64].lower() for line in lines}


def write_manifest(digests: dict[str, str]) -> str:
    """Returns the output of `sha256sum` for files with these digests, sorted by name."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))


def stage(
    source: Path, target: Path, manifest: dict[str, str], mark: str, streams: int
) -> list[Copied]:
    """Makes another folder hold the files of a manifest, its mark and nothing else.

    Changes are made in a draft beside it, which gets the folder's name once it is complete: a run
    that is stopped leaves no incomplete dataset in place, and the next one continues with its
    draft. An existing folder becomes the draft itself, since a disk may have no room for another.

    Args:
        source: The folder to copy from.
        target: The folder to fill; a complete one is not touched, as a training may be reading it.
        manifest: The digest of each file.
        mark: Text that identifies the manifest.
        streams: Number of files to copy at once.

    Raises:
        OSError: A file cannot be read or written, as on a disk that is full.
    """
    draft = target.with_name(f".{target.name}.part")
    target.parent.mkdir(parents=True, exist_ok=True)
    with _alone_in(target.parent), ThreadPoolExecutor(streams) as pool:
        if target.is_symlink():
            # The target of a link belongs to the user, and must not be changed.
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
        # Before copying, which needs the free space.
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
    """Waits for other runs that stage into a folder; the lock ends with the process."""
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _below(folder: Path) -> Iterator[str]:
    """Names of everything below a folder, contents before their folder; follows no link."""
    start = len(f"{folder}/")
    for root, folders, names in os.walk(folder, topdown=False):
        yield from (f"{root}/{name}"[start:] for name in (*names, *folders))


def _folders(names: Iterable[str]) -> set[str]:
    found = {parent for name in names for parent in PurePath(name).parents}
    return {str(parent) for parent in found if parent.name}


def _is(path: Path, wanted: str) -> bool:
    """Whether a path is a regular file, not a link, with this digest."""
    return path.is_file() and not path.is_symlink() and digest(path) == wanted


def _mark(folder: Path) -> str:
    # After a power failure, the file may hold anything.
    return (folder / MARK).read_text(errors="replace")


def _clear(draft: Path, kept: set[str]) -> None:
    """Removes everything below a folder except these files and the folders that contain them."""
    folders = _folders(kept)
    for name in _below(draft):
        path = draft / name
        if path.is_dir() and not path.is_symlink():
            if name not in folders:
                path.rmdir()
        elif name not in kept or path.is_symlink():
            path.unlink()


def _part(name: str) -> str:
    """The name of a file until its copy is complete."""
    path = PurePath(name)
    return str(path.with_name(f".{path.name}.part"))


def _bring(source: Path, draft: Path, name: str, wanted: str) -> Copied:
    """Copies a file, resuming an interrupted copy."""
    here, part = draft / name, draft / _part(name)
    here.parent.mkdir(parents=True, exist_ok=True)
    copied = _append(source / name, part)
    right = digest(part) == wanted
    if not right and copied < part.stat().st_size:
        # The partial file of an earlier run belongs to another version of the file.
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
