"""Reads files and replies safely: limits their size, parses them and validates their shape.

Time and memory are bounded by the size of the document.
"""

from __future__ import annotations

import zlib
from base64 import b64decode
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from pydantic import AfterValidator, TypeAdapter, ValidationError

from gpubed.core import files, wording, yaml_lines
from gpubed.core.errors import GpubedError

_LARGEST_REPLY = 16 * 2**20  # bytes
_LARGEST_FILE = 64 * 2**20  # bytes; the verification of a thousand nodes has 8 million
_PER_VALUE = 16  # bytes; shorter values take many times their size in memory once parsed
_FAULTS = 100
_LONGEST = 300
_LINE, _NAME = 200, 64
_TAIL = 64 * 2**10  # characters that `tail` searches for the last lines
T = TypeVar("T")


class Unreadable(GpubedError):
    """A file or a reply is damaged, too large or of another shape."""


class Missing(Unreadable):
    """The file does not exist."""


@dataclass(frozen=True)
class Document:
    """A file or a reply; every method raises `error` if the document is invalid."""

    data: bytes
    what: str  # the document's name in errors: a path, or "GPULab's answer to jobs"
    fix: str | None = None  # the command or edit that repairs the document
    error: type[Unreadable] = Unreadable  # the class of errors to raise
    limit: int = _LARGEST_REPLY  # the largest size, in bytes

    def __post_init__(self) -> None:
        if len(self.data) > self.limit:
            raise self.refusal(f"it is larger than {files.size(self.limit)}")

    def text(self) -> str:
        """Decode the document as UTF-8."""
        try:
            return self.data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise self.refusal(f"it is not UTF-8 text (byte {error.start})") from None

    def json(self, shape: type[T] | TypeAdapter[T]) -> T:
        """Parse the document as JSON into a model or another type that Pydantic can validate."""
        if not self.data.strip():
            raise self.refusal("it is empty")
        if self.data.count(b",") > (most := self.limit // _PER_VALUE):
            raise self.refusal(f"it has more than {most} values")
        try:
            return _adapter(shape).validate_json(self.data)
        except ValidationError as error:
            raise self.refusal(words(error)) from None

    def yaml(self, shape: type[T] | TypeAdapter[T], *, merges: bool = False) -> T:
        """Parse the document as YAML, like `json`; see `yaml_lines.parse` for what is refused."""
        try:
            parsed = yaml_lines.parse(self.data, merges=merges)
        except yaml_lines.MalformedYamlError as error:
            raise self.refusal(f"line {error.line}: {error.message}") from None
        try:
            return _adapter(shape).validate_python(parsed.data)
        except ValidationError as error:
            faults = _faults(error, parsed, shape)
        if len(faults) == 1:
            raise self.refusal(faults[0])
        lines = "".join(f"\n  {short(fault)}" for fault in faults)
        raise self.error(f"{self.what} has {len(faults)} errors:{lines}", self.fix)

    def base64(self) -> Document:
        """Decode the document from base64."""
        try:
            return replace(self, data=b64decode(self.data, validate=True))
        except ValueError:
            raise self.refusal("it is not base64") from None

    def inflated(self) -> Document:
        """Decompress the document (zlib or gzip); the limit applies to the result, too."""
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)  # detects the format
        try:
            data = unpacker.decompress(self.data, self.limit + 1)
        except zlib.error:
            raise self.refusal("it cannot be decompressed") from None
        if len(data) <= self.limit and not unpacker.eof:
            raise self.refusal("it cannot be decompressed: it is cut off")
        return replace(self, data=data)

    def refusal(self, why: str) -> Unreadable:
        """Return the error about this document."""
        return self.error(f"{self.what} cannot be read: {short(why)}", self.fix)


def file(
    path: Path,
    fix: str | None = None,
    *,
    limit: int = _LARGEST_FILE,
    error: type[Unreadable] = Unreadable,
) -> Document:
    """Read a file; see `Document` for the arguments.

    Raises `Missing` if there is no file, `Unreadable` if it cannot be read or is too large.
    """
    found = Document(b"", str(path), fix, error, limit)
    try:
        return replace(found, data=files.read(path, limit))
    except FileNotFoundError:
        raise Missing(f"there is no {path}", fix) from None
    except OSError as refused:
        raise found.refusal(refused.strerror or str(refused)) from None


def reply(
    data: bytes | str,
    what: str,
    fix: str | None = None,
    *,
    limit: int = _LARGEST_REPLY,
    error: type[Unreadable] = Unreadable,
) -> Document:
    """Wrap the answer of a program or a server; see `Document` for the arguments."""
    # Lone surrogates become bytes that the parser refuses.
    raw = data.encode(errors="surrogatepass") if isinstance(data, str) else data
    return Document(raw, what, fix, error, limit)


def _adapter(shape: type[T] | TypeAdapter[T]) -> TypeAdapter[T]:
    return shape if isinstance(shape, TypeAdapter) else _adapter_of(cast("Hashable", shape))


@cache  # building an adapter takes longer than parsing an event with it
def _adapter_of(shape: Any) -> TypeAdapter[Any]:
    return TypeAdapter(shape)


def words(error: ValidationError) -> str:
    """Describe the first fault and its place, without the value, which may be secret."""
    if error.error_count() > _FAULTS:  # listing them takes longer than validation
        return f"{error.error_count()} of its values are wrong"
    first = wording.errors(error)[0]
    return _placed(first["loc"], _how(first))


def _how(details: Mapping[str, Any], shape: Any = None) -> str:
    how, where = wording.of(details, shape), details["loc"]
    if details["type"] == "literal_error" and where in (("version",), ("schema",)):
        return f"another version of gpubed wrote it ({how})"
    return how


def _placed(where: Sequence[str | int], how: str) -> str:
    path = ".".join(map(str, where))
    return f"{path}: {how}" if path else how


def _faults(error: ValidationError, document: yaml_lines.Located, shape: Any) -> list[str]:
    """Return all faults sorted by line, with the nearest known key for an unknown one."""
    if error.error_count() > _FAULTS:
        return [f"line 1: {words(error)}"]
    found: dict[yaml_lines.Location, list[str]] = {}
    for where, details in wording.placed(error, document):
        how = _how(details, shape)
        if details["type"] == "extra_forbidden" and (key := wording.suggestion(shape, where)):
            how += f" ({key})"
        found.setdefault(where, []).append(how)
    return [
        f"line {document.line(where)}: {_placed(where, ', or '.join(dict.fromkeys(found[where])))}"
        for where in sorted(found, key=document.line)
    ]


def tail(text: str, lines: int = 10, longest: int = 1000) -> str:
    """Return the last lines of a program's output, each printable and shortened."""
    return "\n".join(short(line, longest) for line in text[-_TAIL:].strip().splitlines()[-lines:])


def short(words: str, longest: int = _LONGEST) -> str:
    """Remove unprintable characters and cut the text to `longest` characters."""
    printable = "".join(c for c in words if c.isprintable())
    return printable if len(printable) <= longest else f"{printable[:longest]}…"


Line = Annotated[str, AfterValidator(lambda text: short(text, _LINE))]
"""A sentence from a node, shortened and without control characters."""
Name = Annotated[str, AfterValidator(lambda text: short(text, _NAME))]
"""The name of an account, job or other object from a node, likewise."""
