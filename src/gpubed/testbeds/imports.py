"""Takes in files of other tools, and writes a specification from them.

A backend that knows formats has a module `imports`: `FORMATS` in words, and `imported`, which
returns a `Draft`, or None for a file of another format. Values of secrets are never written.
"""

from __future__ import annotations

import io
import itertools
import re
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path, PurePosixPath
from textwrap import indent
from typing import Any

import yaml

from gpubed.core import files, reading, yaml_lines
from gpubed.core.errors import UsageError
from gpubed.core.yaml_lines import Located, Location
from gpubed.spec import backend_config
from gpubed.testbeds import registry

_LIMIT = 8 * 2**20  # bytes; an RSpec of a thousand nodes has one million
_MOST_COMMENTS = 100
_YAML = re.compile(r"""(\s|#[^\n]*\n)*(---|\{|["']?[\w.-]+["']?:(\s|$))""")
_BETWEEN = re.compile(r"""[\s=,'"{}@\[\]]+|:(?=\d*(?:\s|$))""")
_SECRET = re.compile(r"pass|secret|token|vault", re.IGNORECASE)
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, zlib.error, ValueError, RuntimeError, EOFError)


@dataclass(frozen=True)
class Source:
    """A file, standard input, a folder or an archive."""

    what: str  # its name in errors
    data: bytes = b""  # empty for a folder and an archive
    folder: Path | zipfile.Path | None = None  # where other files lie beside it

    @classmethod
    def open(cls, name: str) -> Source:
        """Read a file, or standard input for `-`; raise `GpubedError` if it is unreadable."""
        path = Path(name)
        if name == "-":
            return cls("standard input", sys.stdin.buffer.read(_LIMIT + 1))
        if path.is_dir():
            return cls(name, folder=path)
        found = reading.file(path, limit=_LIMIT)
        if found.data.startswith((b"PK\3\4", b"\x1f\x8b")) or found.data[257:262] == b"ustar":
            return cls(name, folder=_unpacked(found))
        return cls(name, found.data, path.parent)

    def beside(self, name: str) -> Source | None:
        """Return a file of the folder or archive, or beside the file; None if there is none."""
        path = PurePosixPath(name)
        if self.folder is None or path.is_absolute() or ".." in path.parts:
            return None
        file = self.folder / str(path)
        if not file.is_file():
            return None
        try:
            with file.open("rb") as opened:
                return replace(self, what=name, data=opened.read(_LIMIT + 1))
        except (OSError, *_DAMAGED) as error:
            raise UsageError(f"{self.what}: {name} cannot be read: {error}") from None

    @cached_property
    def text(self) -> str:
        """The file as UTF-8 text; it raises `Unreadable` if it is too large or no such text."""
        return reading.reply(self.data, self.what, limit=_LIMIT).text()

    @cached_property
    def mapping(self) -> Located | None:
        """The file as a YAML or JSON mapping with its lines; None if it is something else."""
        if not _YAML.match(self.text):
            return None
        try:
            # JSON may be indented by tabs, which YAML refuses.
            found = yaml_lines.parse(self.text.replace("\t", " ").encode(), merges=True)
        except yaml_lines.MalformedYamlError as error:
            raise self.refusal(error.line, error.message) from None
        return found if isinstance(found.data, dict) else None

    @cached_property
    def _words(self) -> dict[str, int]:
        lines = enumerate(self.text.splitlines(), 1)
        words = ((word, number) for number, line in lines for word in re.split(_BETWEEN, line))
        return dict(reversed(list(words)))

    def line(self, word: str) -> int:
        """Return the first line that holds a word; 1 if none does."""
        return self._words.get(word, 1)

    def refusal(self, line: int, why: str, fix: str = "correct that line") -> UsageError:
        """Return the error about a line of the file."""
        return UsageError(f"{self.what}:{line}: {reading.short(why)}", fix)


def _unpacked(packed: reading.Document) -> zipfile.Path:
    """Return the root of a zip or tar archive, or the one folder that it holds."""
    data = io.BytesIO(packed.data)
    try:
        if not packed.data.startswith(b"PK"):
            plain = replace(packed, limit=8 * _LIMIT)
            plain = plain.inflated() if packed.data.startswith(b"\x1f") else plain
            with (
                tarfile.open(fileobj=io.BytesIO(plain.data)) as tar,
                zipfile.ZipFile(data := io.BytesIO(), "w") as box,
            ):
                for one in filter(tarfile.TarInfo.isreg, tar):
                    box.writestr(one.name, tar.extractfile(one).read())  # type: ignore[union-attr]
        root = zipfile.Path(data)
        inner = list(root.iterdir())
    except _DAMAGED as error:
        raise packed.refusal(f"the archive is damaged: {error}") from None
    return inner[0] if len(inner) == 1 and inner[0].is_dir() else root


@dataclass
class Draft:
    """Values for a backend's template, their lines in the source, and what they leave out."""

    source: Source
    values: dict[Location, Any] = field(default_factory=dict)
    lines: dict[Location, int] = field(default_factory=dict)
    remarks: dict[Location, str] = field(default_factory=dict)  # see `clusterspec.UNFILLED`
    left_out: dict[str, None] = field(default_factory=dict)

    def put(self, *at: str, value: Any, line: int = 1) -> None:
        """Set a section, or an option of the backend; None removes the key."""
        self.values[at], self.lines[at] = value, line

    def leave(self, line: int, what: str, source: Source | None = None) -> None:
        """Tell what a line of the source asks for and the cluster does not have."""
        where = f"{source.what} line" if source not in (None, self.source) else "line"
        secret = " (a secret)" if _SECRET.search(what) else ""
        self.left_out[reading.short(f"{where} {line}: {what}{secret}")] = None

    def leave_rest(self, of: Located, taken: Collection[Location], source: Source) -> None:
        """Tell which keys of a document are not among those taken."""
        parents = {one[:depth] for one in taken for depth in range(len(one))}
        for at, line in of.lines.items():
            if at and at[:-1] in parents and at not in taken and at not in parents:
                self.leave(line, ".".join(map(str, at)), source)

    def text(self, template: str) -> str:
        """Return the template with the values, and with a comment about what they leave out."""
        told = [f"#   {one}" for one in self.left_out] or ["#   nothing"]
        if len(told) > _MOST_COMMENTS:
            told[_MOST_COMMENTS:] = [f"#   and {len(told) - _MOST_COMMENTS} more"]
        head = "\n".join(["#", f"# From {reading.short(self.source.what)}; left out:", *told])
        text = re.sub(r"^(?!#)", lambda _: f"{head}\n", template, count=1, flags=re.MULTILINE)
        for at, value in self.values.items():
            text = _put(text, at, value)
        lines, places = text.splitlines(), yaml_lines.parse(text.encode())
        for place, words in self.remarks.items():
            if words not in lines[places.line(place) - 1]:
                lines[places.line(place) - 1] += f"  # {reading.short(words)}"
        return "\n".join(lines) + "\n"


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)  # lists are indented, as in the templates


def _put(text: str, at: Location, value: Any) -> str:
    """Replace, add or remove a section, or an option of the backend."""
    pad, new = "  " * (len(at) - 1), {at[-1]: value}
    block = yaml.dump(new, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=999)
    block = "" if value is None else indent(block, pad)
    old = re.compile(rf"^{pad}{at[-1]}:.*\n(?:{pad} +.*\n)*", re.MULTILINE)
    if old.search(text):
        return old.sub(lambda _: block, text, count=1).replace("\n\n\n", "\n\n")
    if not pad:
        return f"{text}\n{block}"
    return re.sub(r"^  type:.*\n", lambda line: line[0] + block, text, count=1, flags=re.MULTILINE)


def group_name(wanted: str, taken: Collection[str] = ()) -> str:
    """Return a name for a node group that is like the wanted one, and not taken."""
    plain = re.sub(r"[^a-z0-9]+", "-", wanted.lower())
    name = re.sub(r"^[^a-z]+", "", plain)[:24].strip("-") or "node"
    others = (f"{name}-{number}" for number in itertools.count(2))
    return next(one for one in itertools.chain([name], others) if one not in taken)


def take_in(source: Source, backends: Iterable[str]) -> tuple[str, Draft]:
    """Return the backend that takes in another tool's file, and the cluster that it asks for.

    Raises `UsageError` if none knows the format, or if a line cannot be taken in at all.
    """
    formats: list[str] = []
    for name in backends:
        if backend_config.template(name).with_name("imports.py").exists():
            module = import_module(f"gpubed.backends.{name}.imports")
            if draft := module.imported(source):
                return name, draft
            formats.append(module.FORMATS)
    known = "; ".join(formats) or "nothing on this backend"
    raise UsageError(f"{source.what} has no format that can be taken in", f"formats: {known}")


def written(draft: Draft, template: str, cluster: str) -> str:
    """Return the specification; raise `UsageError` for the source's line of an invalid value."""
    try:
        text = draft.text(template)
    except yaml_lines.MalformedYamlError as full:  # more than a specification can hold
        raise draft.source.refusal(1, f"asks for too much: {full.message}") from None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "cluster.yml")
        files.write(path, text.encode())
        _, errors = registry.check(path, cluster)
    for error in errors:
        if "# fill in: " not in text.splitlines()[error.line - 1]:
            parts = error.path.split(".")
            within = [at for at in draft.lines if parts[: len(at)] == list(map(str, at))]
            line = draft.lines[max(within, key=len)] if within else 1
            why = f"{error.path}: {error.message}"
            raise draft.source.refusal(line, why, error.allowed or "correct that line")
    return text
