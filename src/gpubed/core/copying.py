"""Files and folders, copied over SFTP.

Whoever is root on a node decides what its SFTP server says. What comes from there stays
below the folder that it was asked for.
"""

from __future__ import annotations

import errno
import stat
import tempfile
from pathlib import Path, PurePosixPath

import paramiko

from gpubed.core.errors import GpubedError

_ACCESS = 0o777  # no setuid, setgid or sticky bit of a node's counts here


class NotAName(GpubedError):
    """A server listed a file under what is no file's name."""


def put(sftp: paramiko.SFTPClient, local: Path, remote: PurePosixPath) -> None:
    """Copy a file, or a folder and what is in it, to exactly the path `remote`."""
    if not local.is_dir():
        sftp.put(str(local), str(remote))
        sftp.chmod(str(remote), stat.S_IMODE(local.stat().st_mode))
        return
    try:
        sftp.mkdir(str(remote))
    except OSError:
        sftp.listdir(str(remote))  # it is there already, or this says what is wrong
    for child in sorted(local.iterdir()):
        put(sftp, child, remote / child.name)


def get(sftp: paramiko.SFTPClient, remote: PurePosixPath, local: Path) -> None:
    """Copy a file, or a folder and the files and folders in it, to exactly the path `local`.

    Links to folders are left out, since they may lead anywhere, and so is what is neither file
    nor folder: a pipe would never end. What goes while it is looked at is left out, and what
    may not be read does not keep the rest from coming.

    Raises:
        NotAName: The server lists a name that leads out of its folder.
        PermissionError: Something may not be read; the rest has come.
    """
    mode = sftp.stat(str(remote)).st_mode or 0
    if not stat.S_ISDIR(mode):
        _get_file(sftp, remote, local, mode)
        return
    local.mkdir(parents=True, exist_ok=True)
    denied = []
    for name in sftp.listdir(str(remote)):
        child = remote / as_name(name)
        try:
            _get_child(sftp, child, local / name)
        except FileNotFoundError:
            if not local.is_dir():
                raise
        except PermissionError as error:
            denied.append(error.filename or str(child))
    if denied:
        raise PermissionError(errno.EACCES, "may not be read", ", ".join(denied))


def as_name(listed: str) -> str:
    """Return what a node lists in a folder, if it is the name of something in it.

    Raises:
        NotAName: It leads somewhere else.
    """
    if listed in ("", ".", "..") or "/" in listed or "\0" in listed:
        raise NotAName(
            f"{listed!r} was listed as a file's name",
            "no server does that which is not made to write elsewhere: look at the node",
        )
    return listed


def _get_child(sftp: paramiko.SFTPClient, remote: PurePosixPath, local: Path) -> None:
    is_link = stat.S_ISLNK(sftp.lstat(str(remote)).st_mode or 0)
    mode = _mode(sftp, remote)
    if stat.S_ISREG(mode):
        _get_file(sftp, remote, local, mode)
    elif stat.S_ISDIR(mode) and not is_link:
        get(sftp, remote, local)


def _get_file(sftp: paramiko.SFTPClient, remote: PurePosixPath, local: Path, mode: int) -> None:
    # What was here before stays until all of it has come.
    with tempfile.TemporaryDirectory(prefix=".gpubed-", dir=local.parent) as folder:
        partial = Path(folder) / "file"
        sftp.get(str(remote), str(partial))
        partial.chmod(mode & _ACCESS)
        partial.replace(local)


def _mode(sftp: paramiko.SFTPClient, path: PurePosixPath) -> int:
    try:
        return sftp.stat(str(path)).st_mode or 0
    except FileNotFoundError:  # a link that leads nowhere
        return 0
