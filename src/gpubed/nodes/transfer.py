"""Copies files and folders to and from the cluster's shared storage, with rsync over SSH.

Nodes are not trusted. `to_get` checks the names, kinds and sizes that the node lists; rsync then
asks for these files only and writes no links. `copy` creates the links that stay within the folder.
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

# A partial file is kept in a hidden folder, where jobs do not see it, and completed later.
_USUAL = ("--partial-dir=.gpubed-part", "--times", "--secluded-args", "--timeout=300")
# Accounts of all nodes may read datasets.
_PUT = ("--recursive", "--links", "--perms", "--chmod=a+rX,u+w,go-w,ug-s,-t")
_OUTPUT = ("--stats", "--no-human-readable", "--8-bit-output")
_PROGRESS = re.compile(r"\s*(\d+)\s+\d+%\s+(\S+/s)")
_FIGURE = re.compile(r"Number of|Total |Literal |Matched |File list|sent |total size|\s*\d+ +\d+%")
_KEPT = 2**16  # characters at the end of rsync's output
_MOST = 500_000  # entries; their names are held in memory
_LARGEST_LIST = 128 * 2**20  # bytes
_SLACK = 2**30  # bytes: files may grow while they are copied
_LONGEST_NAME = 240  # bytes; the draft's name is longer
_VANISHED = 24  # exit code: source files were removed meanwhile
_READY = """
mountpoint -q %s || { echo "shared storage is not mounted" >&2; exit 1; }
command -v rsync >/dev/null || { echo "rsync is missing" >&2; exit 1; }
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
    words: list[str]  # rsync's command line
    place: str  # path of the copy
    room: int  # free bytes at the place
    draft: str = ""  # path of the incomplete copy; empty if files go straight to their place
    names: list[str] | None = None  # files to ask the node for; None for all
    links: dict[str, str] = field(default_factory=dict)  # local links to create, and their targets
    most: float = math.inf  # bytes; a node that sends more is refused
    all_files: int = 0  # files of the source, including those that need no copying
    all_bytes: int = 0
    files: int = 0  # files to copy
    bytes: int = 0
    replaced: int = 0  # files to copy over others that differ
    left_out: list[str] = field(default_factory=list)  # a sentence per file that is not copied


class Copier:
    """Copies to and from the shared storage of a cluster, through its head.

    Raises `PrerequisiteMissing` if the controller has no rsync.
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
        """Plan the copy of a local file or folder to the datasets, by rsync's dry run.

        Raises `UsageError` if there is no such file or folder, or the name cannot be used.
        """
        odd = "/" in name or "\0" in name or name != name.encode(errors="ignore").decode()
        if odd or name[:1] in ("", ".") or len(name.encode()) > _LONGEST_NAME:
            raise UsageError(f"a dataset cannot be named {name!r}", "--as NAME gives another name")
        kind = "folder" if local.is_dir() else "file" if local.is_file() else ""
        if not kind:
            raise UsageError(f"{local} is neither file nor folder")
        datasets = self._root / "datasets"
        place, draft = str(datasets / name), str(datasets / f".{name}.part")
        at_place, at_draft, room = self._run_on_head(
            _READY + _PLACES, self._root, place, draft, self._root
        )
        for found, path in ((at_place, place), (at_draft, draft)):
            if found not in ("none", kind):
                raise UsageError(f"{path} is a {found} already", "--as NAME gives another name")
        draft = draft if at_place == "none" else ""
        end = "/" if kind == "folder" else ""
        paths = [f"{local.resolve()}{end}", f"{self._head.name}:{draft or place}{end}"]
        # Deletes files of an earlier `put` from the draft that the folder has no more.
        options = [*_PUT, "--delete"] if draft and kind == "folder" else _PUT
        copy = Copy(name, [*self._rsync, *options, "--", *paths], place, int(room), draft)
        copy.left_out = list(_unsent(local))
        return self._dry_run(copy)

    def to_get(self, remote: str, folder: Path) -> Copy:
        """Plan the copy of a file or folder of the shared storage into a local folder.

        Raises `UsageError` if it is not on the shared storage, or the folder has a file of another
        kind by that name.
        """
        path = self._root / remote
        if path.is_relative_to(self._datasets):
            path = self._root / "datasets" / path.relative_to(self._datasets)
        if ".." in path.parts or self._root not in path.parents:
            raise UsageError(f"{remote} is not below the shared storage, {self._root}")
        exists = (
            '\n[ -e %s ] || { echo no such file or folder: %s, beside "$(ls -m %s | head -c 500)" '
            ">&2; exit 1; }"
        )
        self._run_on_head(_READY + exists, self._root, path, path, path.parent)
        place = folder.resolve() / path.name
        copy = Copy(path.name, [], str(place), shutil.disk_usage(folder).free)
        is_folder = self._choose(copy, path, place)
        paths = [f"{self._head.name}:{path}", str(place)]
        options = ["--copy-links"]
        if is_folder:
            paths, options = [f"{path}/" for path in paths], ["--files-from=-", "--from0"]
        copy.words = [*self._rsync, *options, "--", *paths]
        return self._dry_run(copy)

    def copy(self, copy: Copy, tell: Callable[[str], None], every_s: float) -> None:
        """Copy, or complete an interrupted copy; call `tell` with the progress every few seconds.

        Raises `GpubedError` if not all of it could be copied.
        """
        if copy.names is not None:
            Path(copy.place).mkdir(exist_ok=True)
        self._run(copy, "--info=progress2", tell, every_s)
        if copy.draft:
            self._run_on_head("mv -nT %s %s && [ ! -e %s ]", copy.draft, copy.place, copy.draft)
        for name, target in copy.links.items():
            link = Path(copy.place, name)
            if not os.path.lexists(link):
                link.symlink_to(target)
            elif not link.is_symlink() or link.readlink() != Path(target):
                copy.left_out.append(
                    f"{name!r} is left out: the local folder has another file of that name"
                )

    def _run_on_head(self, script: str, *args: object) -> list[str]:
        with SSH(self._head, self._cluster.paths) as head:
            done = head.run(script, *args, check=False, timeout=120)
        if done.exit_code:
            raise GpubedError(f"{self._head.name}: {done.tail}", "gpubed status CLUSTER")
        return done.stdout.split()

    def _choose(self, copy: Copy, path: PurePosixPath, place: Path) -> bool:
        """Choose the files to ask the node for; return whether `path` is a folder."""
        (root, size, *_), *rest = self._list(path)
        if root not in ("d", "f") or _kind(place) not in ("", root):
            why = f"{place} exists already, and is of another kind"
            raise UsageError(why, "--to FOLDER, another one")
        kinds, left_out, names = {"": root}, dict[str, str](), list[str]()
        for kind, file_size, name, target in rest:
            parent, _, last = name.rpartition("/")
            odd = name.startswith("/") or last in ("", ".", "..") or name in kinds
            if odd or kinds.get(parent) != "d":
                if parent not in left_out:
                    left_out[name] = "the node lists it in no folder"
            elif _kind(place / name) not in ("", kind):
                left_out[name] = "the local folder has another file of that name"
            elif kind not in ("d", "f", "l"):
                left_out[name] = "it is neither file nor folder"
            elif kind == "l" and not _stays(name, target):
                left_out[name] = "it is a link that leads out of the folder"
            elif kind == "l":
                copy.links[name], kinds[name] = target, kind
            else:
                kinds[name] = kind
                names.append(name)
                size += file_size
        copy.most = size * 1.1 + _SLACK
        copy.left_out = [f"{name!r} is left out: {why}" for name, why in left_out.items()]
        copy.names = names if root == "d" else None
        return root == "d"

    def _list(self, path: PurePosixPath) -> Iterator[tuple[str, int, str, str]]:
        """Yield kind, size, name and link target of a file, or of a folder and all its files."""
        listing = [*self._login, in_sh(_LIST % shlex.quote(str(path)))]
        with subprocess.Popen(listing, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as find:
            output = find.stdout.read(_LARGEST_LIST + 1) if find.stdout else b""
            if len(output) > _LARGEST_LIST:
                find.terminate()
        fields = output.split(b"\0")[:-1]
        if len(output) > _LARGEST_LIST or len(fields) > 2 * _MOST:
            raise UsageError(f"{path} has more than {_MOST:,} files", "get a folder below it")
        if find.returncode:
            how = f"find, or the connection, ended with exit code {find.returncode}"
            raise GpubedError(f"{self._head.name} did not list all of {path}: {how}")
        if len(fields) < 2:
            raise GpubedError(f"{self._head.name} does not list {path}")
        for entry, target in zip(fields[::2], fields[1::2], strict=False):
            found = re.fullmatch(rb"(.) (\d{1,18}) (.*)", entry, re.DOTALL)
            if not found:
                raise GpubedError(f"{self._head.name} lists {path} in another form than find does")
            kind, size, name = found.groups()
            yield kind.decode(errors="replace"), int(size), os.fsdecode(name), os.fsdecode(target)

    def _dry_run(self, copy: Copy) -> Copy:
        output = self._run(copy, "--dry-run")

        def number(pattern: str) -> int:
            found = re.findall(rf"^{pattern}", output, re.MULTILINE)
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
        tell: Callable[[str], None] = lambda _message: None,
        every_s: float = 1,
    ) -> str:
        """Run rsync; return the end of its output."""
        output, told_at = "", time.monotonic()
        words = [*copy.words[:1], option, *_OUTPUT, *copy.words[1:]]
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
                    for line in iter(lambda: read(_KEPT), ""):  # universal newlines: \r ends a line
                        output = (output + line)[-_KEPT:]
                        if not (found := _PROGRESS.match(line)):
                            continue
                        if int(found[1]) > copy.most:
                            raise GpubedError(f"{self._head.name} sends more than it listed")
                        if time.monotonic() - told_at >= every_s:
                            told_at = time.monotonic()
                            done = files.size(int(found[1]))
                            tell(f"{copy.name}: {done} of {files.size(copy.bytes)}, {found[2]}")
                except BaseException:
                    rsync.terminate()  # unlike `kill`, keeps a partial file
                    raise
        if rsync.returncode not in (0, _VANISHED):
            lines = [line for line in output.splitlines() if line.strip()]
            lines = [line for line in lines if not _FIGURE.match(line)]
            why = "; ".join(lines[-4:]) or f"rsync ended with {rsync.returncode}"
            again = "files that arrived stay: the same command completes the copy"
            raise GpubedError(f"{copy.name} was not copied: {reading.short(why, 1000)}", again)
        return output


def _kind(path: Path) -> str:
    """Return the kind of a local file as a letter, as `find` does; empty if there is none."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return ""
    return {stat.S_IFDIR: "d", stat.S_IFREG: "f", stat.S_IFLNK: "l"}.get(stat.S_IFMT(mode), "?")


def _stays(name: str, target: str) -> bool:
    """Return whether the target of a link is within the folder that `name` is relative to.

    `..` is accepted at the beginning only: after another link's name, it could lead anywhere.
    """
    parts = target.split("/")
    up = next((at for at, part in enumerate(parts) if part != ".."), len(parts))
    return target != "" and parts[0] != "" and ".." not in parts[up:] and up <= name.count("/")


def _unsent(local: Path) -> Iterator[str]:
    """Yield a sentence per file that rsync leaves out, and per link that breaks on nodes."""
    for at, folders, names in os.walk(local):
        for name in (*folders, *names):
            path = Path(at, name)
            inside = str(path.relative_to(local))
            if (kind := _kind(path)) == "?":
                yield f"{inside!r} is left out: it is neither file nor folder"
            elif kind == "l" and not _stays(inside, str(path.readlink())):
                yield f"{inside!r} is a link out of the folder, and leads elsewhere on nodes"
