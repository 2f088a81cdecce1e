"""Copies files and folders to and from the cluster's shared storage, with rsync over SSH.

A node decides what it lists and sends: `to_get` checks the list, rsync then asks for these files
only and writes no links, and links that stay within the folder are made here.
"""

from __future__ import annotations

import io
import math
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from gpubed.core import files, reading
from gpubed.core.errors import GpubedError, PrerequisiteMissing, UsageError
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.ssh import SSH, in_sh

# A half file stays out of the sight of jobs, and is gone on with.
_USUAL = ("--partial-dir=.gpubed-part", "--times", "--secluded-args", "--timeout=300")
# Accounts of all nodes may read datasets.
_PUT = ("--recursive", "--links", "--perms", "--chmod=a+rX,u+w,go-w,ug-s,-t")
_SAID = ("--stats", "--no-human-readable", "--8-bit-output")
_PROGRESS = re.compile(r"\s*(\d+)\s+\d+%\s+(\S+/s)")
_FIGURE = re.compile(r"Number of|Total |Literal |Matched |File list|sent |total size|\s*\d+ +\d+%")
_KEPT = 2**16  # characters at the end of what rsync says
_MOST = 500_000  # entries; their names are held in memory
_LARGEST_LIST = 128 * 2**20  # bytes
_SLACK = 2**30  # bytes: files may grow while they are copied
_LONGEST_NAME = 240  # bytes; that of the draft is longer
_VANISHED = 24  # files that were removed meanwhile
_READY = """
mountpoint -q %s || { echo "shared storage is not mounted there" >&2; exit 1; }
command -v rsync >/dev/null || { echo "rsync is missing there" >&2; exit 1; }
"""
_PLACES = """
for place in %s %s; do
  if [ -d "$place" ]; then echo folder; elif [ -e "$place" ]; then echo file; else echo none; fi
done
df -B1 --output=avail %s | tail -n 1
"""
_LIST = "find -H %s -printf '%%y %%s %%P\\0%%l\\0'"


@dataclass
class Copy:
    """A file or folder to copy, and the result of rsync's dry run."""

    name: str
    words: list[str]  # how rsync is called
    place: str  # where it will be
    room: int  # free bytes there
    draft: str = ""  # where it is until it is whole; empty if it is copied to its place
    names: list[str] | None = None  # the names to ask for; None for all
    links: dict[str, str] = field(default_factory=dict)  # links to make here, with their targets
    most: float = math.inf  # bytes after which the node is not believed any more
    all_files: int = 0  # its files, also those that are there already
    all_bytes: int = 0
    files: int = 0  # files to copy
    bytes: int = 0
    replaced: int = 0  # how many of these are there already, and differ
    left_out: list[str] = field(default_factory=list)  # sentences about what is not copied


class Copier:
    """Copies to and from the shared storage of a cluster, through its head.

    Raises `PrerequisiteMissing` if there is no rsync here.
    """

    def __init__(self, cluster: Cluster) -> None:
        if not shutil.which("rsync"):
            raise PrerequisiteMissing("rsync is not installed here", "sudo apt-get install rsync")
        self._cluster, self._head = cluster, cluster.allocation.head
        storage = cluster.plan.spec.storage
        self._root, self._datasets = PurePosixPath(storage.shared.path), storage.datasets
        config = str(cluster.paths.ssh_config)
        self._login = ["ssh", "-F", config, self._head.name]
        shell = 'ssh -F "{}"'.format(config.replace('"', '""'))  # as rsync reads quotes
        self._rsync = ["rsync", *_USUAL, f"--rsh={shell}"]

    def to_put(self, local: Path, name: str) -> Copy:
        """Return what copying a file or folder to the datasets means.

        Raises `UsageError` if there is no such thing, or it cannot have this name there.
        """
        odd = "/" in name or "\0" in name or name != name.encode(errors="ignore").decode()
        if odd or name[:1] in ("", ".") or len(name.encode()) > _LONGEST_NAME:
            raise UsageError(f"a dataset cannot be named {name!r}", "--as NAME gives another name")
        kind = "folder" if local.is_dir() else "file" if local.is_file() else ""
        if not kind:
            raise UsageError(f"{local} is neither file nor folder")
        place, draft = (str(self._root / "datasets" / one) for one in (name, f".{name}.part"))
        there, half, room = self._ask(_READY + _PLACES, self._root, place, draft, self._root)
        for what, at in ((there, place), (half, draft)):
            if what not in ("none", kind):
                raise UsageError(f"{at} is there, and is a {what}", "--as NAME gives another name")
        draft = draft if there == "none" else ""
        end = "/" if kind == "folder" else ""
        ways = [f"{local.resolve()}{end}", f"{self._head.name}:{draft or place}{end}"]
        # What an earlier `put` left in the draft, and is not in the folder any more, goes.
        how = [*_PUT, "--delete"] if draft and kind == "folder" else _PUT
        copy = Copy(name, [*self._rsync, *how, "--", *ways], place, int(room), draft)
        copy.left_out = list(_unsent(local))
        return self._foreseen(copy)

    def to_get(self, remote: str, folder: Path) -> Copy:
        """Return what copying a file or folder of the shared storage into a folder means.

        Raises `UsageError` if it is not on the shared storage, or something else has its name here.
        """
        path = self._root / remote
        if path.is_relative_to(self._datasets):
            path = self._root / "datasets" / path.relative_to(self._datasets)
        if ".." in path.parts or self._root not in path.parents:
            raise UsageError(f"{remote} is not below the shared storage, {self._root}")
        there = (
            '\n[ -e %s ] || { echo no such file or folder: %s, beside "$(ls -m %s | head -c 500)" '
            ">&2; exit 1; }"
        )
        self._ask(_READY + there, self._root, path, path, path.parent)
        place = folder.resolve() / path.name
        copy = Copy(path.name, [], str(place), shutil.disk_usage(folder).free)
        is_folder = self._chosen(copy, path, place)
        ways = [f"{self._head.name}:{path}", str(place)]
        how = ["--copy-links"]
        if is_folder:
            ways, how = [f"{way}/" for way in ways], ["--files-from=-", "--from0"]
        copy.words = [*self._rsync, *how, "--", *ways]
        return self._foreseen(copy)

    def copy(self, copy: Copy, tell: Callable[[str], None], every_s: float) -> None:
        """Copy it, going on with what has arrived; `tell` hears of it each `every_s` seconds.

        Raises `GpubedError` if not all of it could be copied.
        """
        if copy.names is not None:
            Path(copy.place).mkdir(exist_ok=True)
        self._run(copy, "--info=progress2", tell, every_s)
        if copy.draft:
            self._ask("mv -nT %s %s && [ ! -e %s ]", copy.draft, copy.place, copy.draft)
        for name, target in copy.links.items():
            link = Path(copy.place, name)
            if not os.path.lexists(link):
                link.symlink_to(target)
            elif not link.is_symlink() or link.readlink() != Path(target):
                copy.left_out.append(f"{name!r} is left out: something else has its name here")

    def _ask(self, script: str, *args: object) -> list[str]:
        with SSH(self._head, self._cluster.paths) as head:
            done = head.run(script, *args, check=False, timeout=120)
        if done.exit_code:
            raise GpubedError(f"{self._head.name}: {done.tail}", "gpubed status CLUSTER")
        return done.stdout.split()

    def _chosen(self, copy: Copy, path: PurePosixPath, place: Path) -> bool:
        """Choose what to ask for of what the node lists; return whether that is a folder."""
        (root, size, *_), *rest = self._listed(path)
        if root not in ("d", "f") or _kind(place) not in ("", root):
            raise UsageError(f"{place} is here, and is something else", "--to FOLDER, another one")
        kinds, left_out, names = {"": root}, dict[str, str](), list[str]()
        for kind, its_size, name, target in rest:
            above, _, last = name.rpartition("/")
            odd = name.startswith("/") or last in ("", ".", "..") or name in kinds
            if odd or kinds.get(above) != "d":
                if above not in left_out:
                    left_out[name] = "the node lists it in no folder"
            elif _kind(place / name) not in ("", kind):
                left_out[name] = "something else has its name here"
            elif kind not in ("d", "f", "l"):
                left_out[name] = "it is neither file nor folder"
            elif kind == "l" and not _stays(name, target):
                left_out[name] = "it is a link that leads out of the folder"
            elif kind == "l":
                copy.links[name], kinds[name] = target, kind
            else:
                kinds[name] = kind
                names.append(name)
                size += its_size
        copy.most = size * 1.1 + _SLACK
        copy.left_out = [f"{name!r} is left out: {why}" for name, why in left_out.items()]
        copy.names = names if root == "d" else None
        return root == "d"

    def _listed(self, path: PurePosixPath) -> Iterator[tuple[str, int, str, str]]:
        """Yield kind, size, name and a link's target of a file, or of a folder and all in it."""
        listing = [*self._login, in_sh(_LIST % shlex.quote(str(path)))]
        with subprocess.Popen(listing, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as find:
            said = find.stdout.read(_LARGEST_LIST + 1) if find.stdout else b""
            if len(said) > _LARGEST_LIST:
                find.terminate()
        fields = said.split(b"\0")[:-1]
        if len(said) > _LARGEST_LIST or len(fields) > 2 * _MOST:
            raise UsageError(f"{path} has more than {_MOST:,} files", "get a folder of it")
        if find.returncode:
            how = f"find, or the connection, ended with exit code {find.returncode}"
            raise GpubedError(f"{self._head.name} did not list all of {path}: {how}")
        if len(fields) < 2:
            raise GpubedError(f"{self._head.name} does not list {path}")
        for entry, target in zip(fields[::2], fields[1::2], strict=False):
            found = re.fullmatch(rb"(.) (\d{1,18}) (.*)", entry, re.DOTALL)
            if not found:
                raise GpubedError(f"{self._head.name} lists {path} in no form of find's")
            kind, size, name = found.groups()
            yield kind.decode(errors="replace"), int(size), os.fsdecode(name), os.fsdecode(target)

    def _foreseen(self, copy: Copy) -> Copy:
        said = self._run(copy, "--dry-run")

        def number(pattern: str) -> int:
            found = re.findall(rf"^{pattern}", said, re.MULTILINE)
            return int(found[-1]) if found else 0

        copy.all_files = number(r"Number of files: \d+ \(.*?reg: (\d+)")
        copy.all_bytes = number(r"Total file size: (\d+)")
        copy.files = number(r"Number of regular files transferred: (\d+)")
        copy.bytes = number(r"Total transferred file size: (\d+)")
        copy.replaced = copy.files - number(r"Number of created files: \d+ \(.*?reg: (\d+)")
        return copy

    def _run(
        self,
        copy: Copy,
        option: str,
        tell: Callable[[str], None] = lambda _said: None,
        every_s: float = 1,
    ) -> str:
        """Run rsync; return the end of what it says."""
        said, told = "", time.monotonic()
        words = [*copy.words[:1], option, *_SAID, *copy.words[1:]]
        with tempfile.TemporaryFile() as names:
            names.write(b"".join(os.fsencode(name) + b"\0" for name in copy.names or ()))
            names.seek(0)
            with subprocess.Popen(
                words,
                stdin=names,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "LC_ALL": "C"},
                errors="replace",
            ) as rsync:
                try:
                    read = (rsync.stdout or io.StringIO()).readline
                    for line in iter(lambda: read(_KEPT), ""):  # \r ends one, too
                        said = (said + line)[-_KEPT:]
                        if not (found := _PROGRESS.match(line)):
                            continue
                        if int(found[1]) > copy.most:
                            raise GpubedError(f"{self._head.name} sends more than it listed")
                        if time.monotonic() - told >= every_s:
                            told = time.monotonic()
                            come = files.size(int(found[1]))
                            tell(f"{copy.name}: {come} of {files.size(copy.bytes)}, {found[2]}")
                except BaseException:
                    rsync.terminate()  # keeps the part of a file
                    raise
        if rsync.returncode not in (0, _VANISHED):
            lines = [one for one in said.splitlines() if one.strip() and not _FIGURE.match(one)]
            why = "; ".join(lines[-4:]) or f"rsync ended with {rsync.returncode}"
            again = "what has arrived stays: the same command goes on from there"
            raise GpubedError(f"{copy.name} was not copied: {reading.short(why, 1000)}", again)
        return said


def _kind(path: Path) -> str:
    """Return the letter of find's for a file of this machine; empty if there is none."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return ""
    return {stat.S_IFDIR: "d", stat.S_IFREG: "f", stat.S_IFLNK: "l"}.get(stat.S_IFMT(mode), "?")


def _stays(name: str, target: str) -> bool:
    """Say whether a link leads to a place within the folder that its name is relative to.

    `..` counts at the beginning only: behind the name of another link, it leads elsewhere.
    """
    parts = target.split("/")
    up = next((at for at, part in enumerate(parts) if part != ".."), len(parts))
    return target != "" and parts[0] != "" and ".." not in parts[up:] and up <= name.count("/")


def _unsent(local: Path) -> Iterator[str]:
    """Yield a sentence per thing in a folder that rsync leaves out, or that leads nowhere there."""
    for at, folders, names in os.walk(local):
        for name in (*folders, *names):
            path = Path(at, name)
            inside = str(path.relative_to(local))
            if (kind := _kind(path)) == "?":
                yield f"{inside!r} is left out: it is neither file nor folder"
            elif kind == "l" and not _stays(inside, str(path.readlink())):
                yield f"{inside!r} is a link out of the folder, and leads elsewhere on nodes"
