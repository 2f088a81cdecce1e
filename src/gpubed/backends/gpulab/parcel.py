"""Transfers a job's files into its container, and its results back.

Files go in as a tar archive in an argument of the container's command. Results come back as marked
lines of the job's log, the only channel that all users have; larger files stay on the project
storage. `templates/gpulab/container.py` is the other end.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from gpubed.core import reading
from gpubed.core.errors import UsageError
from gpubed.core.reading import Document, Unreadable

_LONGEST_WORD = 131_071  # bytes; Linux refuses a longer argument (MAX_ARG_STRLEN)
LIMIT = 2**19  # bytes of results in the log, before packing
_UNPACKED = 2**24  # bytes of the archive: headers of small files are larger than their content
_LINE = r":([0-9]{1,4})/([0-9]{1,4}):([A-Za-z0-9+/=]{0,8192})\s*$"
_LEFT_OUT = (".pyc", ".ipynb")


def pack(folder: Path, names: Iterable[str], extra: Mapping[str, str], *, follow: bool) -> str:
    """Return files of a folder, and extra ones, as one argument of a command.

    With `follow`, links are replaced by their targets. Raises `UsageError` for a link that leads
    out of the folder, and for too many bytes.
    """
    packed, within = io.BytesIO(), folder.resolve()
    with tarfile.open(fileobj=packed, mode="w:gz", dereference=follow) as archive:
        for name in sorted(names):
            path = folder / name
            if path.is_symlink() and not follow:
                leads = path.readlink()
                if leads.is_absolute() or not path.resolve().is_relative_to(within):
                    raise UsageError(
                        f"the link {path} leads to {leads}, which does not travel with the folder",
                        "replace it by a file, or list it in .gpubedignore",
                    )
            elif not path.is_file() or name.endswith(_LEFT_OUT):
                continue
            archive.add(path, name, filter=_anonymous)
        for name, text in extra.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    word = base64.b64encode(packed.getvalue()).decode("ascii")
    if len(word) > _LONGEST_WORD:
        raise UsageError(
            f"{folder.name} is too large to travel in a GPULab job: {len(word)} bytes packed, "
            f"at most {_LONGEST_WORD}",
            "put its data on the project storage and leave only code in the folder; "
            "a command's .gpubedignore takes files out",
        )
    return word


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


class Damaged(Unreadable):
    """The log has no complete parcel."""


class Facts(BaseModel):
    """A parcel's header: exit code, files too large to send, and checksum."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    exit_code: int = Field(ge=0, le=255)
    left: tuple[str, ...]
    sha256: str


@dataclass
class Parcel:
    """Collects a run's results from the lines of its log."""

    mark: str  # secret prefix of the parcel's lines
    own: frozenset[str] = frozenset()  # names of gpubed's own files, which are never overwritten
    left_out: list[str] = field(default_factory=list)  # results with such names
    _parts: dict[int, str] = field(default_factory=dict)
    _total: int = 0

    def __post_init__(self) -> None:
        self._line = re.compile(re.escape(self.mark) + _LINE)

    def takes(self, line: str) -> bool:
        """Keep a line if it is part of the parcel; return whether it is."""
        found = self._line.search(line)
        if found is None:
            return False
        self._parts[int(found[1])] = found[3]
        self._total = int(found[2])
        return True

    @property
    def whole(self) -> bool:
        """Whether no part is missing."""
        return bool(self._total) and self._parts.keys() == set(range(1, self._total + 1))

    def unpack(self, target: Path) -> Facts:
        """Write the files; raises Damaged if a part is missing or altered."""
        if not self.whole:
            raise Damaged(
                f"its log was cut: {len(self._parts)} of {self._total or 'all'} lines "
                "with results arrived"
            )
        *parts, last = (self._parts[number] for number in range(1, self._total + 1))
        facts = _part(last, "what its log says about its results").json(Facts)
        content = _part("".join(parts), "its results")
        if hashlib.sha256(content.data).hexdigest() != facts.sha256:
            raise Damaged("the results in its log are not what was sent: another checksum")
        self.left_out = _extract(content.inflated(), target, self.own)
        return facts


def _part(text: str, what: str) -> Document:
    return reading.reply(text, what, limit=_UNPACKED, error=Damaged).base64()


def _extract(content: Document, target: Path, own: frozenset[str]) -> list[str]:
    """Unpack all but the names in `own`; return the names left out."""
    room, left_out = LIMIT, []
    try:
        with tarfile.open(fileobj=io.BytesIO(content.data)) as archive:
            for member in archive:
                room -= abs(member.size)
                if room < 0:
                    raise Damaged(f"its results hold more than {LIMIT} bytes")
                if member.issym():  # never sent; later members could be written through it
                    raise Damaged(f"its results hold a link: {member.name!r}")
                if own & {_top(member.name), _top(member.linkname)}:
                    left_out.append(member.name)
                else:
                    archive.extract(member, target, filter="data")
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise Damaged(f"its results cannot be unpacked: {error}") from error
    return left_out


def _top(name: str) -> str:
    return os.path.normpath(name).lstrip("/").partition("/")[0]
