"""Files and folders, copied over SFTP.

Whoever is root on a node decides what its SFTP server says. What comes from there stays
below the folder that it was asked for.
"""

from __future__ import annotations

import errno
import shutil
import stat
import tempfile
import unicodedata
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import paramiko
from paramiko.sftp import CMD_CLOSE, CMD_HANDLE, CMD_NAME, CMD_OPENDIR, CMD_READDIR

from gpubed.core import files, reading
from gpubed.core.copy_limits import Limits
from gpubed.core.errors import GpubedError

# No setuid, setgid or sticky bit of a node's counts here, and it lets nobody else write.
_ACCESS = 0o755
# What is asked for at once: it waits in memory, and its requests fit an SSH channel's window. More
# of them would fill that, and a server that waits to be read reads no more, for ever.
_AHEAD = 16 * 2**20
_PIECE = 32 * 2**10  # paramiko adds what it reads to what it has, over and over
_LARGEST = 64 * 2**30  # one of a training's state is smaller; a sparse one may say anything
_SHARE = 0.9  # of the free disk: what else is written there must fit, too
_DEEPEST = 100  # nobody sorts results into so many folders, and we go down one call at a time
_NAMED = 20  # sentences; a folder may have any number of pipes


_LEADS_OUT = "it is a link that leads out of the folder"
_NOT_FOLLOWED = "it is a link that may not be followed"
ELSEWHERE = (_LEADS_OUT, _NOT_FOLLOWED)
"""Ends of the sentences about links whose files are not in what was copied."""


class NotAName(GpubedError):
    """A server listed a file under what is no file's name."""


class MayNotBeRead(GpubedError):
    """A server lets us have some of what is there, and not all."""


def put(sftp: paramiko.SFTPClient, local: Path, remote: PurePosixPath) -> None:
    """Copy a file, or a folder and what is in it, to exactly the path `remote`.

    Raises:
        GpubedError: Something cannot be copied; `cannot_go` says why.
    """
    if why := cannot_go(local):
        raise GpubedError(f"{str(local)!r} cannot be copied: {why}", "move it elsewhere")
    if not local.is_dir():
        sftp.put(str(local), str(remote))
        sftp.chmod(str(remote), stat.S_IMODE(local.stat().st_mode))
        return
    try:
        sftp.mkdir(str(remote))
        sftp.chmod(str(remote), 0o755)  # the umask there may be another
    except OSError:
        # It is there already, or one of the two says what is wrong.
        if not stat.S_ISDIR(sftp.stat(str(remote)).st_mode or 0):
            raise
    for child in sorted(local.iterdir()):
        put(sftp, child, remote / child.name)


def cannot_go(local: Path) -> str:
    """Say why `put` copies no such file or folder; empty where it does."""
    try:
        local.name.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    # To read a pipe is to wait for its other end, and a device may have no end.
    is_other = local.exists() and not (local.is_file() or local.is_dir())
    return "it is neither file nor folder" if is_other else ""


def get(
    sftp: paramiko.SFTPClient, remote: PurePosixPath, local: Path, own: Collection[str] = ()
) -> list[str]:
    """Copy a file, or a folder and the files and folders in it, to exactly the path `local`.

    Left out are links to folders and out of the folder, since they may lead anywhere; what is
    neither file nor folder: a pipe would never end; names that are not UTF-8; and files that
    are larger than 64 GiB, or than nine tenths of the free disk. What goes while it is looked at
    is left out, and what may not be read does not keep the rest from coming.

    Args:
        own: Names in the folder that are ours: nothing is written by them.

    Returns:
        Sentences that say what was left out, and why.

    Raises:
        NotAName: The server lists a name that leads out of its folder.
        MayNotBeRead: Something may not be read; the rest has come.
        Beyond: The server says more, or takes longer, than results do.
    """
    limits = Limits(str(remote))
    with limits.in_time(sftp):
        return _got(sftp, remote, local, own, limits)


def _got(
    sftp: paramiko.SFTPClient,
    remote: PurePosixPath,
    local: Path,
    own: Collection[str],
    limits: Limits,
) -> list[str]:
    found = sftp.stat(str(remote))
    if not stat.S_ISDIR(found.st_mode or 0):
        why = too_large(found.st_size or 0, local.parent)
        if not why:
            _get_file(sftp, remote, local, found, limits)
        return [_sentence(remote.name, why)] if why else []
    copy = _Copy(sftp, remote, PurePosixPath(sftp.normalize(str(remote))), limits, own)
    local.mkdir(parents=True, exist_ok=True)
    try:
        copy.folder(remote, local)
    except PermissionError as error:
        copy.denied.append(error.filename or str(remote))
    if copy.denied:
        raise MayNotBeRead(
            f"not all of {remote} is here, since this may not be read: {', '.join(copy.denied)}",
            "let the cluster's account read it, or remove it there",
        )
    return copy.told()


def is_silence(error: BaseException) -> bool:
    """Say whether it is a server that has not answered in time, and no time-out of a disk here."""
    return isinstance(error, TimeoutError) and error.errno is None


def as_name(listed: str) -> str:
    """Return what a node lists in a folder, if it is the name of something in it.

    Raises:
        NotAName: It leads somewhere else.
    """
    if listed in ("", ".", "..") or "/" in listed or "\0" in listed:
        raise NotAName(
            f"{reading.short(listed, 100)!r} was listed as a file's name",
            "no server does that which is not made to write elsewhere: look at the node",
        )
    return listed


def _folded(name: str) -> str:
    """Return what names have in common that are one file's on some disks, as macOS has them."""
    return unicodedata.normalize("NFKC", name).casefold()


@dataclass
class _Copy:
    """A folder that is being copied.

    Attributes:
        top: The folder, as it was asked for.
        real: Where it is: no link leads out of here.
        limits: What it has taken so far.
        own: Names in `top` that are ours.
        left_out: Why, by what it is.
        denied: What may not be read.
    """

    sftp: paramiko.SFTPClient
    top: PurePosixPath
    real: PurePosixPath
    limits: Limits
    own: Collection[str] = ()
    left_out: dict[str, str] = field(default_factory=dict)
    denied: list[str] = field(default_factory=list)

    def folder(self, remote: PurePosixPath, local: Path) -> None:
        """Copy what is in a folder: `top`, or one below."""
        local.mkdir(parents=True, exist_ok=True)
        for listed in _listed(self.sftp, remote, self.limits):
            try:
                name = as_name(listed.decode())
            except UnicodeDecodeError:
                shown = listed.decode(errors="backslashreplace")
                self._leave(remote / shown, "its name is not UTF-8")
                continue
            child = remote / name
            if remote == self.top and _folded(name) in map(_folded, self.own):
                self._leave(child, "gpubed's own files have this name")
                continue
            try:
                self._child(child, local / name)
            except FileNotFoundError:
                if not local.is_dir():
                    raise
            except PermissionError as error:
                self.denied.append(error.filename or str(child))

    def told(self) -> list[str]:
        """Return a sentence for each thing that was left out, if there are not too many."""
        told = [_sentence(name, why) for name, why in self.left_out.items()]
        more = len(told) - _NAMED
        return [*told[:_NAMED], f"{more} more are left out"] if more > 0 else told

    def _leave(self, what: PurePosixPath, why: str) -> None:
        self.left_out[str(what.relative_to(self.top))] = why

    def _child(self, remote: PurePosixPath, local: Path) -> None:
        found = self.sftp.lstat(str(remote))
        mode = found.st_mode or 0
        if stat.S_ISLNK(mode):
            self._link(remote, local)
        elif stat.S_ISREG(mode):
            self._file(remote, remote, local, found)
        elif not stat.S_ISDIR(mode):
            self._leave(remote, "it is neither file nor folder")
        elif local.exists() and not local.is_dir():
            self._leave(remote, "here, a file has its name")
        elif len(remote.relative_to(self.top).parts) > _DEEPEST:
            self._leave(remote, f"it is in more than {_DEEPEST} folders")
        else:
            self.folder(remote, local)

    def _link(self, link: PurePosixPath, local: Path) -> None:
        """Copy what a link leads to, if it is a file in the folder."""
        try:
            target = self._within(link)
            found = self.sftp.stat(str(target)) if target else None
        except PermissionError:
            self._leave(link, _NOT_FOLLOWED)
        except OSError as error:
            # Without a number it is what a server has no word for, as a circle, or its end.
            channel = self.sftp.get_channel()
            lost = channel is None or channel.closed or is_silence(error)
            if lost or error.errno not in (None, errno.ENOENT):
                raise
            self._leave(link, "it is a link that leads nowhere")
        else:
            if target is None or found is None:
                self._leave(link, _LEADS_OUT)
            elif stat.S_ISDIR(found.st_mode or 0):
                self._leave(link, "it is a link to a folder")
            elif not stat.S_ISREG(found.st_mode or 0):
                self._leave(link, "it is neither file nor folder")
            else:
                # The file itself is opened: the link may lead elsewhere by then.
                self._file(link, target, local, found)

    def _file(
        self,
        remote: PurePosixPath,
        source: PurePosixPath,
        local: Path,
        found: paramiko.SFTPAttributes,
    ) -> None:
        if local.is_dir():
            self._leave(remote, "here, a folder has its name")
        elif why := too_large(found.st_size or 0, local.parent, self.limits.came):
            self._leave(remote, why)
        else:
            _get_file(self.sftp, source, local, found, self.limits)

    def _within(self, link: PurePosixPath) -> PurePosixPath | None:
        """Return where a link leads, if that is in the folder."""
        try:
            target = PurePosixPath(self.sftp.normalize(str(link)))
        except UnicodeDecodeError:
            return None
        return target if target.is_relative_to(self.real) else None


def _sentence(name: str, why: str) -> str:
    return f"{name!r} is left out: {why}"


def _listed(sftp: paramiko.SFTPClient, folder: PurePosixPath, limits: Limits) -> list[bytes]:
    """Return the names in a folder as they are: paramiko's own listing ends at one not UTF-8."""
    inner: Any = sftp  # what it has no public call for
    attributes: Any = paramiko.SFTPAttributes
    names = []
    with _given_up_at_once(sftp):
        kind, reply = inner._request(CMD_OPENDIR, str(folder))
        if kind != CMD_HANDLE:
            raise paramiko.SFTPError("Expected handle")
        handle = reply.get_binary()
        with suppress(EOFError):  # there are no more
            while True:
                kind, reply = inner._request(CMD_READDIR, handle)
                if kind != CMD_NAME:
                    raise paramiko.SFTPError("Expected name response")
                for _ in range(reply.get_int()):
                    names.append(reply.get_binary())
                    limits.list(names[-1], str(folder))
                    reply.get_binary()  # as `ls -l` shows it
                    attributes._from_msg(reply)
        inner._request(CMD_CLOSE, handle)
    return [name for name in names if name not in (b".", b"..")]


@contextmanager
def _given_up_at_once(sftp: paramiko.SFTPClient) -> Iterator[None]:
    """Close the connection where a signal, or silence, ends the work.

    It may come within a packet: nothing that is read from there on can be made out, and to wait
    for an answer, as the end of an open file does, may be for ever.
    """
    try:
        yield
    except BaseException as error:
        if is_silence(error) or not isinstance(error, Exception):
            sftp.close()
        raise


def too_large(wanted: int, into: Path, came: int = 0) -> str:
    """Say why so many bytes are too many to be copied into a folder; empty where they are not.

    Args:
        came: Bytes that the same copy has brought already.
    """
    most = max(0, int((shutil.disk_usage(into).free + came) * _SHARE) - came)
    if wanted > _LARGEST:
        return f"it has {files.size(wanted)}, more than {files.size(_LARGEST)}"
    if wanted > most:
        return f"it has {files.size(wanted)}, and the disk here has room for {files.size(most)}"
    return ""


def _get_file(
    sftp: paramiko.SFTPClient,
    remote: PurePosixPath,
    local: Path,
    found: paramiko.SFTPAttributes,
    limits: Limits,
) -> None:
    # What was here before stays until all of it has come.
    with tempfile.TemporaryDirectory(prefix=".gpubed-", dir=local.parent) as folder:
        partial = Path(folder) / "file"
        with files.named(local):
            _read(sftp, remote, partial, found.st_size or 0, limits)
        partial.chmod((found.st_mode or 0) & _ACCESS)
        partial.replace(local)


def _read(
    sftp: paramiko.SFTPClient, remote: PurePosixPath, local: Path, size: int, limits: Limits
) -> None:
    """Read so many bytes of a file, a part of them at a time: see `_AHEAD`."""
    with (
        sftp.open(str(remote), "rb") as source,
        local.open("wb") as target,
        _given_up_at_once(sftp),
    ):
        for start in range(0, size, _AHEAD):
            end = min(start + _AHEAD, size)
            source.prefetch(end)
            for at in range(start, end, _PIECE):
                piece = source.read(min(_PIECE, end - at))
                target.write(piece)
                limits.came += len(piece)
                if len(piece) < min(_PIECE, end - at):
                    raise OSError(f"{remote} became shorter while it was copied")
