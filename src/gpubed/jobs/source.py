"""Selects the files of a command's folder that are sent to the nodes."""

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
"""Patterns of files that stay here, in the syntax of `.gitignore`."""
ASK_FROM = 256 * 2**20
"""Bytes; a larger folder is sent only after a question."""
_MOST = 50_000  # files


def files(folder: Path) -> list[str]:
    """Return the files and links of a folder to send to the nodes, as sorted relative paths.

    In a git repository these are the tracked files, including those of submodules, and the
    untracked files that git does not ignore. Elsewhere they are all files but those of virtual
    environments, `.git` and `__pycache__`. `.gpubedignore` excludes more.

    Raises:
        UsageError: There are more than 50,000, a pattern is wrong, or a submodule is not here.
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
                    f"call it in a smaller folder, or list what to leave out in {ignored}",
                )
    return sorted(kept)


def size(folder: Path, names: Iterable[str]) -> int:
    """Return the total size of files in a folder, in bytes."""
    return sum((folder / name).lstat().st_size for name in names)


def largest(folder: Path, names: Sequence[str]) -> str:
    """Return the top-level entry of a folder that has most of the given files' bytes."""
    tops = {PurePath(name).parts[0] for name in names}
    return max(
        tops,
        key=lambda top: size(folder, (name for name in names if PurePath(name).parts[0] == top)),
    )


def starts_ranks(command: Sequence[str]) -> bool:
    """Say whether a command starts the ranks of its node itself, as `torchrun` does."""
    program = PurePath(command[0]).name
    return program == "torchrun" or (
        program.startswith("python") and list(command[1:3]) == ["-m", "torch.distributed.run"]
    )


def require_script(command: Sequence[str], folder: Path, names: Sequence[str]) -> None:
    """Refuse a command whose script is not among the files of its folder that are sent.

    Raises:
        UsageError: It is not, or it is called as if it were a program.
    """
    if command[0] in names and command[0].endswith(".py"):
        raise UsageError(f"{command[0]} is no program", f"-- python {shlex.join(command)}")
    words = itertools.takewhile(lambda word: word not in ("-m", "-c"), command[1:])
    script = next((word for word in words if word.endswith(".py")), "")
    if not (script and PurePath(command[0]).name.startswith(("python", "torchrun"))):
        return
    name = os.path.normpath(script)
    below = {name, *map(str, PurePath(name).parents)}  # which may be links
    if not PurePath(name).is_absolute() and below.isdisjoint(names):
        fix = nearest_name(name, [one for one in names if one.endswith(".py")])
        if name.startswith("../"):
            fix = "call gpubed in a folder that has it: only that folder travels"
        elif (folder / name).exists():
            fix = f"git or {IGNORE} keeps it here"
        raise UsageError(f"{script} does not go to the nodes from {folder}", fix)


def called(command: Sequence[str]) -> str:
    """Return a name for runs of a command: that of its script, else of its program."""
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
            return None  # no repository, or one of another account
        listed += [os.fsdecode(name) for name in done.stdout.split(b"\0") if name]
    for name in [one for one in listed if one.endswith("/")]:  # a repository within this one
        listed += [name + inner for inner in _of_git(folder / name) or ()]
    if empty := [name for name in listed if name[-1] != "/" and _is_folder(folder / name)]:
        raise UsageError(f"the submodule {empty[0]} is not here", "git submodule update --init")
    return list(dict.fromkeys(listed))


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


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
