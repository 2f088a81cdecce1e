"""Writes a specification from a file of another tool (`gpubed init --from`).

A backend that reads such files has a module `imports` with `FORMATS`, a description of their
formats, and `imported(source)`, which returns a `Draft`, or None for a file of another format.
Values of secrets are never written.
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

_LIMIT = 8 * 2**20  # bytes; an RSpec of 1000 nodes has 1 MB
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
    folder: Path | zipfile.Path | None = None  # the folder with its other files

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
        """Return another file of the folder or archive; None if there is none."""
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
        """The file as text; raises `Unreadable` if it is too large or not UTF-8."""
        return reading.reply(self.data, self.what, limit=_LIMIT).text()

    @cached_property
    def mapping(self) -> Located | None:
        """The file as a YAML or JSON mapping with line numbers; None if it is none."""
        if not _YAML.match(self.text):
            return None
        try:
            # JSON may be indented by tabs, YAML may not.
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
        """Return the number of the first line with a word; 1 if no line has it."""
        return self._words.get(word, 1)

    def refusal(self, line: int, why: str, fix: str = "correct that line") -> UsageError:
        """Return the error about a line of the file."""
        return UsageError(f"{self.what}:{line}: {reading.short(why)}", fix)


def _unpacked(packed: reading.Document) -> zipfile.Path:
    """Return the root of a zip or tar archive, or its only folder."""
    data = io.BytesIO(packed.data)
    try:
        if not packed.data.startswith(b"PK"):
            plain = replace(packed, limit=8 * _LIMIT)
            plain = plain.inflated() if packed.data.startswith(b"\x1f") else plain
            with (
                tarfile.open(fileobj=io.BytesIO(plain.data)) as tar,
                zipfile.ZipFile(data := io.BytesIO(), "w") as box,
            ):
                for member in filter(tarfile.TarInfo.isreg, tar):
                    box.writestr(member.name, tar.extractfile(member).read())  # type: ignore[union-attr]
        root = zipfile.Path(data)
        inner = list(root.iterdir())
    except _DAMAGED as error:
        raise packed.refusal(f"the archive is damaged: {error}") from None
    return inner[0] if len(inner) == 1 and inner[0].is_dir() else root


@dataclass
class Draft:
    """Values for a backend's template, with their lines in the source, and omitted parts."""

    source: Source
    backend: str = ""  # the type to write, where the module's backend has several
    values: dict[Location, Any] = field(default_factory=dict)
    lines: dict[Location, int] = field(default_factory=dict)
    remarks: dict[Location, str] = field(default_factory=dict)  # see `clusterspec.UNFILLED`
    omitted: dict[str, None] = field(default_factory=dict)  # a message for each part, in order

    def put(self, *at: str, value: Any, line: int = 1) -> None:
        """Set a section, or an option of the backend; None removes the key."""
        self.values[at], self.lines[at] = value, line

    def omit(self, line: int, what: str, source: Source | None = None) -> None:
        """Note a part of the source that the specification cannot express."""
        where = f"{source.what} line" if source not in (None, self.source) else "line"
        secret = " (a secret)" if _SECRET.search(what) else ""
        self.omitted[reading.short(f"{where} {line}: {what}{secret}")] = None

    def omit_rest(self, of: Located, taken: Collection[Location], source: Source) -> None:
        """Note the keys of a document that are not among those taken."""
        parents = {path[:depth] for path in taken for depth in range(len(path))}
        for at, line in of.lines.items():
            if at and at[:-1] in parents and at not in taken and at not in parents:
                self.omit(line, ".".join(map(str, at)), source)

    def text(self, template: str) -> str:
        """Return the template with the values, and a comment that lists the omitted parts."""
        notes = [f"#   {note}" for note in self.omitted] or ["#   nothing"]
        if len(notes) > _MOST_COMMENTS:
            notes[_MOST_COMMENTS:] = [f"#   and {len(notes) - _MOST_COMMENTS} more"]
        head = "\n".join(["#", f"# From {reading.short(self.source.what)}; left out:", *notes])
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
    """Return a valid name for a node group, similar to the wanted one and not taken."""
    plain = re.sub(r"[^a-z0-9]+", "-", wanted.lower())
    name = re.sub(r"^[^a-z]+", "", plain)[:24].strip("-") or "node"
    others = (f"{name}-{number}" for number in itertools.count(2))
    return next(free for free in itertools.chain([name], others) if free not in taken)


def take_in(source: Source, backends: Iterable[str]) -> tuple[str, Draft]:
    """Return the backend that reads another tool's file, and the draft of a specification.

    Raises `UsageError` if no backend reads the format, or if a line of the file is unusable.
    """
    formats: list[str] = []
    for name in backends:
        if backend_config.template(name).with_name("imports.py").exists():
            module = import_module(f"gpubed.backends.{backend_config.canonical(name)}.imports")
            if draft := module.imported(source):
                return draft.backend or name, draft
            formats.append(module.FORMATS)
    known = "; ".join(formats) or "nothing on this backend"
    raise UsageError(f"{source.what} has no format that can be taken in", f"formats: {known}")


def written(draft: Draft, template: str, cluster: str) -> str:
    """Return the specification; raise `UsageError` with the source's line for an invalid value."""
    try:
        text = draft.text(template)
    except yaml_lines.MalformedYamlError as full:  # too large for a specification
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
