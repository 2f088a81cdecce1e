"""Copies files and folders over SFTP.

A node may send anything: copies stay below the requested folder and within limits.
"""

from __future__ import annotations

import errno
import shutil
import stat
import tempfile
import threading
import time
import unicodedata
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import paramiko
from paramiko.sftp import CMD_CLOSE, CMD_HANDLE, CMD_NAME, CMD_OPENDIR, CMD_READDIR

from gpubed.core import files, reading
from gpubed.core.errors import GpubedError
from gpubed.core.units import duration

# Drops a node's setuid, setgid and sticky bits, and lets only the owner write.
_ACCESS = 0o755
# Bytes requested ahead: they are held in memory, and their requests must fit an SSH channel's
# window, since a server may not read requests while it waits to send.
_PREFETCH = 16 * 2**20
_PIECE = 32 * 2**10  # paramiko copies its whole buffer for each chunk that it reads
_LARGEST = 64 * 2**30  # a sparse file may claim any size
_DISK_SHARE = 0.9  # of the free disk
_DEEPEST = 100  # nested folders; each is a recursive call
_MOST_SENTENCES = 20
_MOST_ENTRIES = 500_000  # entries in all; their names are held in memory
_LONGEST_NAME = 255  # bytes, as of any file
_LONGEST_S = 2 * 3600.0  # time limit, beside the time for bytes at the slowest rate
_SLOWEST = 100 * 2**10  # bytes a second
_CHECK_EVERY_S = 5.0
_HINT = "a run writes less, and a network is faster: inspect the node"

_LEADS_OUT = "it is a link that leads out of the folder"
_NOT_FOLLOWED = "it is a link that may not be followed"
_OTHER = "it is neither file nor folder"
NOT_COPIED_TARGETS = (_LEADS_OUT, _NOT_FOLLOWED)
"""Reasons for leaving out a link whose target may lie outside the copied folder."""


class NotAName(GpubedError):
    """A server listed an invalid file name."""


class MayNotBeRead(GpubedError):
    """The server denied access to a part of a folder; the rest was copied."""


class LimitExceeded(GpubedError):
    """A server sent more, or took longer, than the limits; earlier files were copied."""


def put(sftp: paramiko.SFTPClient, local: Path, remote: PurePosixPath) -> None:
    """Copy a file, or a folder with its content, to exactly the path `remote`."""
    if why := copy_fault(local):
        raise GpubedError(f"{str(local)!r} cannot be copied: {why}", "move it elsewhere")
    if not local.is_dir():
        sftp.put(str(local), str(remote))
        sftp.chmod(str(remote), stat.S_IMODE(local.stat().st_mode))
        return
    try:
        sftp.mkdir(str(remote))
        sftp.chmod(str(remote), 0o755)  # the remote umask may differ
    except OSError:
        # An existing folder is no error.
        if not stat.S_ISDIR(sftp.stat(str(remote)).st_mode or 0):
            raise
    for child in sorted(local.iterdir()):
        put(sftp, child, remote / child.name)


def copy_fault(local: Path) -> str:
    """Return why `put` cannot copy a file or folder, or "" if it can."""
    try:
        local.name.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    # Reading a pipe waits for its other end, and a device may have no end.
    return _OTHER if local.exists() and not (local.is_file() or local.is_dir()) else ""


def get(
    sftp: paramiko.SFTPClient, remote: PurePosixPath, local: Path, reserved: Collection[str] = ()
) -> list[str]:
    """Copy a file, or a folder with its files and folders, to exactly the path `local`.

    Leaves out `reserved` names in the folder; links to folders and out of the folder; pipes and
    devices; names that are not UTF-8; and files that are larger than 64 GiB, or than nine tenths of
    the free disk. Returns a sentence for each entry left out.

    Raises `NotAName`, `MayNotBeRead` after the rest was copied, and `LimitExceeded`.
    """
    copy = _Copy(sftp, remote, reserved)
    with copy.in_time():
        found = sftp.stat(str(remote))
        if not stat.S_ISDIR(found.st_mode or 0):
            copy.top = remote.parent
            copy.file(remote, remote, local, found)
            return copy.sentences()
        copy.real = PurePosixPath(sftp.normalize(str(remote)))
        try:
            copy.folder(remote, local)
        except PermissionError as error:
            copy.denied.append(error.filename or str(remote))
    if copy.denied:
        raise MayNotBeRead(
            f"not all of {remote} was copied, access was denied to: {', '.join(copy.denied)}",
            "let the cluster's account read it, or remove it there",
        )
    return copy.sentences()


def is_silence(error: BaseException) -> bool:
    """Return whether a server did not answer in time; unlike a disk's timeout, without errno."""
    return isinstance(error, TimeoutError) and error.errno is None


def as_name(listed: str) -> str:
    """Return a name in a node's listing; raise `NotAName` if it leads out of the folder."""
    if listed in ("", ".", "..") or "/" in listed or "\0" in listed:
        raise NotAName(
            f"{reading.short(listed, 100)!r} was listed as a file's name",
            "such a name would write outside the folder: the node may be compromised, inspect it",
        )
    return listed


def too_large(wanted: int, into: Path, before: int = 0) -> str:
    """Return why a folder cannot take `wanted` bytes after `before` others, or "" if it can."""
    most = max(0, int((shutil.disk_usage(into).free + before) * _DISK_SHARE) - before)
    if wanted > _LARGEST:
        return f"it has {files.size(wanted)}, more than {files.size(_LARGEST)}"
    if wanted > most:
        return f"it has {files.size(wanted)}, and the disk here has room for {files.size(most)}"
    return ""


def _folded(name: str) -> str:
    # Compares names like file systems that ignore case and Unicode form (macOS).
    return unicodedata.normalize("NFKC", name).casefold()


@dataclass
class _Copy:
    sftp: paramiko.SFTPClient
    top: PurePosixPath  # the requested path
    reserved: Collection[str]  # names in `top` that are left out
    real: PurePosixPath = field(default_factory=PurePosixPath)  # of `top`; links may not leave it
    left_out: dict[str, str] = field(default_factory=dict)  # why, by path
    denied: list[str] = field(default_factory=list)  # unreadable paths
    entries: int = 0  # listed entries
    received: int = 0  # bytes of files

    @contextmanager
    def in_time(self) -> Iterator[None]:
        """Close the connection and raise `LimitExceeded` once the copy takes too long.

        A thread does so, because a server's packets may keep paramiko itself busy without end.
        """
        started, over, ended = time.monotonic(), threading.Event(), threading.Event()

        def watch() -> None:
            while not (ended.wait(_CHECK_EVERY_S) or over.is_set()):
                if time.monotonic() - started > _LONGEST_S + self.received / _SLOWEST:
                    over.set()
                    self.sftp.close()

        threading.Thread(target=watch, daemon=True).start()
        try:
            yield
        except Exception:
            if not over.is_set():
                raise
            came = f"{files.size(self.received)} in {duration(time.monotonic() - started)}"
            why = f"copying {self.top} took longer than allowed: {came}"
            raise LimitExceeded(why, _HINT) from None
        finally:
            ended.set()

    def folder(self, remote: PurePosixPath, local: Path) -> None:
        """Copy the content of `top` or of a folder below it."""
        local.mkdir(parents=True, exist_ok=True)
        for listed in self._listed(remote):
            try:
                name = as_name(listed.decode())
            except UnicodeDecodeError:
                shown = listed.decode(errors="backslashreplace")
                self._leave(remote / shown, "its name is not UTF-8")
                continue
            child = remote / name
            if remote == self.top and _folded(name) in map(_folded, self.reserved):
                self._leave(child, "gpubed's own files have this name")
                continue
            try:
                self._child(child, local / name)
            except FileNotFoundError:  # removed meanwhile: the remote file, or the local folder
                if not local.is_dir():
                    raise
            except PermissionError as error:
                self.denied.append(error.filename or str(child))

    def sentences(self) -> list[str]:
        all_ = [f"{name!r} is left out: {why}" for name, why in self.left_out.items()]
        more = len(all_) - _MOST_SENTENCES
        return [*all_[:_MOST_SENTENCES], f"{more} more are left out"] if more > 0 else all_

    def file(
        self,
        name: PurePosixPath,
        source: PurePosixPath,
        local: Path,
        found: paramiko.SFTPAttributes,
    ) -> None:
        """Copy a file; an existing local file is replaced once the copy is complete."""
        size = found.st_size or 0
        fault = "a local folder has its name" if local.is_dir() else ""
        if fault := fault or too_large(size, local.parent, self.received):
            self._leave(name, fault)
            return
        with tempfile.TemporaryDirectory(prefix=".gpubed-", dir=local.parent) as folder:
            partial = Path(folder) / "file"
            with files.named(local):
                self._read(source, partial, size)
            partial.chmod((found.st_mode or 0) & _ACCESS)
            partial.replace(local)

    def _leave(self, what: PurePosixPath, why: str) -> None:
        self.left_out[str(what.relative_to(self.top))] = why

    def _child(self, remote: PurePosixPath, local: Path) -> None:
        found = self.sftp.lstat(str(remote))
        mode = found.st_mode or 0
        if stat.S_ISLNK(mode):
            self._link(remote, local)
        elif stat.S_ISREG(mode):
            self.file(remote, remote, local, found)
        elif not stat.S_ISDIR(mode):
            self._leave(remote, _OTHER)
        elif local.exists() and not local.is_dir():
            self._leave(remote, "a local file has its name")
        elif len(remote.relative_to(self.top).parts) > _DEEPEST:
            self._leave(remote, f"it is in more than {_DEEPEST} folders")
        else:
            self.folder(remote, local)

    def _link(self, link: PurePosixPath, local: Path) -> None:
        try:
            target = PurePosixPath(self.sftp.normalize(str(link)))
            # Nothing outside of the folder is accessed.
            found = self.sftp.stat(str(target)) if target.is_relative_to(self.real) else None
        except UnicodeDecodeError:
            found = None
        except PermissionError:
            self._leave(link, _NOT_FOLLOWED)
            return
        except OSError as error:
            # Without errno: a failure that has no SFTP code (a link loop), or a lost connection.
            channel = self.sftp.get_channel()
            lost = channel is None or channel.closed or is_silence(error)
            if lost or error.errno not in (None, errno.ENOENT):
                raise
            self._leave(link, "it is a link that leads nowhere")
            return
        if found is None:
            self._leave(link, _LEADS_OUT)
        elif stat.S_ISDIR(found.st_mode or 0):
            self._leave(link, "it is a link to a folder")
        elif not stat.S_ISREG(found.st_mode or 0):
            self._leave(link, _OTHER)
        else:
            # Open the target, because the link may change meanwhile.
            self.file(link, target, local, found)

    def _listed(self, folder: PurePosixPath) -> list[bytes]:
        """Return a folder's names as bytes; paramiko's own listing fails at a non-UTF-8 name."""
        inner: Any = self.sftp  # paramiko has no public call for this
        attributes: Any = paramiko.SFTPAttributes
        names = []
        with self._closed_on_interrupt():
            kind, reply = inner._request(CMD_OPENDIR, str(folder))
            if kind != CMD_HANDLE:
                raise paramiko.SFTPError("Expected handle")
            handle = reply.get_binary()
            with suppress(EOFError):  # end of the listing
                while True:
                    kind, reply = inner._request(CMD_READDIR, handle)
                    if kind != CMD_NAME:
                        raise paramiko.SFTPError("Expected name response")
                    for _ in range(reply.get_int()):
                        names.append(name := reply.get_binary())
                        self.entries += 1
                        if len(name) > _LONGEST_NAME or self.entries > _MOST_ENTRIES:
                            what = f"a name of {len(name)} bytes"
                            if self.entries > _MOST_ENTRIES:
                                what = f"more than {_MOST_ENTRIES} entries in {self.top}, the last"
                            place = reading.short(str(folder), 200)
                            raise LimitExceeded(f"the node lists {what} in {place!r}", _HINT)
                        reply.get_binary()  # the long name, as in `ls -l`
                        attributes._from_msg(reply)
            inner._request(CMD_CLOSE, handle)
        return [name for name in names if name not in (b".", b"..")]

    @contextmanager
    def _closed_on_interrupt(self) -> Iterator[None]:
        """Close the connection if a signal or a timeout interrupts the work.

        After an interrupt within a packet, the stream cannot be parsed, and closing a file would
        wait for a reply without end.
        """
        try:
            yield
        except BaseException as error:
            if is_silence(error) or not isinstance(error, Exception):
                self.sftp.close()
            raise

    def _read(self, remote: PurePosixPath, local: Path, size: int) -> None:
        """Read `size` bytes of a file, `_PREFETCH` bytes of prefetch at a time."""
        with (
            self.sftp.open(str(remote), "rb") as source,
            local.open("wb") as target,
            self._closed_on_interrupt(),
        ):
            for start in range(0, size, _PREFETCH):
                end = min(start + _PREFETCH, size)
                source.prefetch(end)
                for at in range(start, end, _PIECE):
                    piece = source.read(min(_PIECE, end - at))
                    target.write(piece)
                    self.received += len(piece)
                    if len(piece) < min(_PIECE, end - at):
                        raise OSError(f"{remote} became shorter while it was copied")
