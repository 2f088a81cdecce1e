"""Brings the wheels that a lock names.

The store is shared with nodes and clusters that may write what they like to it, so nothing
counts there but a file's checksum, and that of a copy which nobody else can change. What the
store lacks is downloaded by pip, which checks hashes too, and is put there for others.
Runs with the installer's own Python, which must be the one that the wheels are for.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from packaging.requirements import Requirement
from packaging.tags import sys_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

# One stream alone is rarely as fast as the line.
_AT_ONCE = 4
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def entries(lock: str) -> Iterator[tuple[str, list[str]]]:
    """Yields each requirement of this platform, as the lock has it, with its checksums."""
    text = re.sub(r"^\s*#.*\n", "", lock, flags=re.MULTILINE).replace("\\\n", " ")
    for line in filter(None, map(str.strip, text.splitlines())):
        marker = Requirement(line.split(" --hash")[0]).marker
        if marker is None or marker.evaluate():
            yield line, _HASH.findall(line)


def sha256(path: Path) -> str:
    """Returns a file's checksum."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fits(path: Path) -> bool:
    """Says whether something is a wheel, and for this Python."""
    if path.suffix != ".whl" or path.name.startswith("."):
        return False
    if path.is_symlink() or not path.is_file():
        return False
    try:
        return bool(set(sys_tags()) & parse_wheel_filename(path.name)[3])
    except InvalidWheelFilename:
        return False


def from_store(store: Path, hashes: list[str], out: Path) -> bool:
    """Copies a wheel that fits and has one of the checksums; says whether there is one."""
    for wanted in hashes:
        for found in filter(fits, (store / wanted).glob("*")):
            copy = out / found.name
            shutil.copyfile(found, copy)
            if sha256(copy) == wanted:
                return True
            copy.unlink()
            found.unlink()  # somebody's mistake, or worse: in nobody's way any more
    return False


def download(lines: list[str], store: Path, out: Path) -> None:
    """Downloads wheels, several at once, and adds them to the store.

    pip keeps what it brought once it has all of a stream. Where one stream fails, what the others
    brought is in the store, and the next try has that much less to do.
    """
    groups = [lines[first::_AT_ONCE] for first in range(min(_AT_ONCE, len(lines)))]
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        done = [threads.submit(download_group, group, store, out) for group in groups]
    for group in done:
        group.result()


def download_group(lines: list[str], store: Path, out: Path) -> None:
    """Downloads wheels one after the other, and adds them to the store."""
    with tempfile.TemporaryDirectory(dir=out) as fresh:
        wanted = Path(fresh, "requirements.txt")
        wanted.write_text("\n".join(lines) + "\n")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        options = ["--no-cache-dir", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
        # Gigabytes, and /tmp may be memory.
        environment = {**os.environ, "TMPDIR": fresh}
        command = [*pip, *options, "--dest", fresh, "-r", str(wanted)]
        subprocess.run(command, env=environment, check=True)
        for wheel in Path(fresh).glob("*.whl"):
            folder = store / sha256(wheel)
            folder.mkdir(parents=True, exist_ok=True)
            put(wheel, folder / wheel.name)
            wheel.rename(out / wheel.name)


def put(wheel: Path, kept: Path) -> None:
    """Copies a wheel into the store, beside others who may do the same at the same time.

    The draft is a new file, so it is written through no link, and nobody takes it for a wheel.
    """
    handle, draft = tempfile.mkstemp(dir=kept.parent, suffix=".partial")
    try:
        with wheel.open("rb") as source, os.fdopen(handle, "wb") as target:
            shutil.copyfileobj(source, target)
        Path(draft).chmod(0o644)
        Path(draft).rename(kept)
    finally:
        Path(draft).unlink(missing_ok=True)


def fetch(lock: Path, store: Path, out: Path) -> None:
    """Fills a folder with the wheels that a lock names."""
    out.mkdir(parents=True, exist_ok=True)
    missing = [
        line for line, hashes in entries(lock.read_text()) if not from_store(store, hashes, out)
    ]
    if missing:
        download(missing, store, out)
