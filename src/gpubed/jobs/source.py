"""Selects the files of a command's folder that are copied to the nodes."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import stat
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePath

import pathspec

from gpubed.core import reading
from gpubed.core.errors import UsageError
from gpubed.core.text import nearest_name

IGNORE = ".gpubedignore"
"""File with patterns of files that are not copied, in the syntax of `.gitignore`."""
ASK_FROM = 256 * 2**20
"""Size in bytes above which a folder is copied only after a confirmation."""
_MOST = 50_000  # files


def files(folder: Path) -> list[str]:
    """Return the files and links of a folder to copy to the nodes, as sorted relative paths.

    In a git repository these are the tracked files, including those of submodules, and untracked
    files that git does not ignore. Elsewhere they are all files except virtual environments, `.git`
    and `__pycache__`. `.gpubedignore` excludes more.

    Raises:
        UsageError: There are more than 50,000, a pattern is wrong, or a submodule is missing.
    """
    names = _of_git(folder)
    found = _walked(folder) if names is None else iter(names)
    ignored, patterns = folder / IGNORE, list[str]()
    with suppress(reading.Missing):
        patterns = reading.file(ignored).text().splitlines()
    try:
        spec = pathspec.GitIgnoreSpec.from_lines(patterns)
    except ValueError as error:
        raise UsageError(f"{ignored}: {error}", "correct that pattern") from None
    kept = list[str]()
    for name in found:
        if not spec.match_file(name) and _travels(folder / name):
            kept.append(name)
            if len(kept) > _MOST:
                raise UsageError(
                    f"{folder} has more than {_MOST:,} files",
                    f"call it in a smaller folder, or list files to leave out in {ignored}",
                )
    return sorted(kept)


def size(folder: Path, names: Iterable[str]) -> int:
    """Return the total size of files in a folder, in bytes."""
    return sum((folder / name).lstat().st_size for name in names)


def largest(folder: Path, names: Sequence[str]) -> str:
    """Return the top-level entry of a folder with the most bytes of the given files."""
    tops = {PurePath(name).parts[0] for name in names}
    return max(
        tops,
        key=lambda top: size(folder, (name for name in names if PurePath(name).parts[0] == top)),
    )


def starts_ranks(command: Sequence[str]) -> bool:
    """Return whether a command starts the ranks of its node itself, as `torchrun` does."""
    program = PurePath(command[0]).name
    return program == "torchrun" or (
        program.startswith("python") and list(command[1:3]) == ["-m", "torch.distributed.run"]
    )


def require_script(command: Sequence[str], folder: Path, names: Sequence[str]) -> None:
    """Refuse a command whose script is not among the files that are copied to the nodes.

    Raises:
        UsageError: The script is not copied, or is called without `python`.
    """
    if command[0] in names and command[0].endswith(".py"):
        raise UsageError(f"{command[0]} is no program", f"-- python {shlex.join(command)}")
    words = itertools.takewhile(lambda word: word not in ("-m", "-c"), command[1:])
    script = next((word for word in words if word.endswith(".py")), "")
    if not (script and PurePath(command[0]).name.startswith(("python", "torchrun"))):
        return
    name = os.path.normpath(script)
    paths = {name, *map(str, PurePath(name).parents)}  # a parent may be a link that is copied
    if not PurePath(name).is_absolute() and paths.isdisjoint(names):
        fix = nearest_name(name, [other for other in names if other.endswith(".py")])
        if name.startswith("../"):
            fix = "call gpubed in a folder that contains it: only that folder is copied"
        elif (folder / name).exists():
            fix = f"git or {IGNORE} excludes it"
        raise UsageError(f"{script} is not copied to the nodes from {folder}", fix)


def called(command: Sequence[str]) -> str:
    """Return a name for runs of a command: the name of its script, else of its program."""
    scripts = (word for word in command if word.endswith((".py", ".sh")))
    name = PurePath(next(scripts, command[0])).name
    name = name.removesuffix(".py").removesuffix(".sh") or "command"
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name)[:40]


def _of_git(folder: Path) -> list[str] | None:
    listed = list[str]()
    for which in (
        ("--cached", "--recurse-submodules"),
        ("--others", "--exclude-standard"),
    ):
        try:
            done = subprocess.run(
                ["git", "-C", str(folder), "ls-files", "-z", *which],
                capture_output=True,
                check=False,
            )
        except FileNotFoundError:
            return None
        if done.returncode:
            return None  # no repository, or a repository of another account
        listed += [os.fsdecode(name) for name in done.stdout.split(b"\0") if name]
    for name in [one for one in listed if one.endswith("/")]:  # a nested repository
        listed += [name + inner for inner in _of_git(folder / name) or ()]
    for name in listed:
        path = folder / name
        if name[-1] != "/" and path.is_dir() and not path.is_symlink():
            raise UsageError(f"the submodule {name} is missing", "git submodule update --init")
    return list(dict.fromkeys(listed))


def _walked(folder: Path) -> Iterator[str]:
    for at, folders, names in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if name not in (".git", "__pycache__") and not any(Path(at, name).glob("pyvenv.cfg"))
        ]
        links = [name for name in folders if Path(at, name).is_symlink()]
        for name in (*names, *links):
            yield str(Path(at, name).relative_to(folder))


def _travels(path: Path) -> bool:
    try:
        mode = path.lstat().st_mode
    except OSError:  # tracked by git, but deleted
        return False
    return stat.S_ISREG(mode) or stat.S_ISLNK(mode)
