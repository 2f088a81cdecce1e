"""Reads files and replies of others: bytes → bounded → parsed → a validated shape.

Reading ends in data of the wanted shape, or in one error that names the document, the
fault and its repair. Time and memory depend on the size of the document alone.
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

from gpubed.core import files, located, shapes, wording
from gpubed.core.errors import GpubedError

_REPLY, _FILE = 16 * 2**20, 64 * 2**20  # a verification of a thousand nodes has 8 million bytes
_PER_VALUE = 16  # a shorter one takes many times its bytes once it is parsed, or found wrong
_FAULTS = 100
_LONGEST = 300
_LINE, _NAME = 200, 64
_TAIL = 64 * 2**10  # characters in which its last lines are looked for
T = TypeVar("T")


class Unreadable(GpubedError):
    """A file or a reply is not what it should be."""


class Missing(Unreadable):
    """There is no such file."""


@dataclass(frozen=True)
class Document:
    """A file or a reply; every method raises `error` where the document does not fit.

    Attributes:
        data: As it came.
        what: Its name in errors: a path, or "GPULab's answer to jobs".
        fix: The command or edit that repairs it.
        error: The class of errors.
        limit: The most bytes that it may have.
    """

    data: bytes
    what: str
    fix: str | None = None
    error: type[Unreadable] = Unreadable
    limit: int = _REPLY

    def __post_init__(self) -> None:
        if len(self.data) > self.limit:
            raise self.refusal(f"it is larger than {files.size(self.limit)}")

    def text(self) -> str:
        """Return it as text, which must be UTF-8."""
        try:
            return self.data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise self.refusal(f"it is not UTF-8 text (byte {error.start})") from None

    def json(self, shape: type[T] | TypeAdapter[T]) -> T:
        """Return its JSON as a model, or as any type that Pydantic can check."""
        if not self.data.strip():
            raise self.refusal("it is empty")
        if self.data.count(b",") > (most := self.limit // _PER_VALUE):
            raise self.refusal(f"it has more than {most} values")
        try:
            return _adapter(shape).validate_json(self.data)
        except ValidationError as error:
            raise self.refusal(words(error)) from None

    def yaml(self, shape: type[T] | TypeAdapter[T], *, merges: bool = False) -> T:
        """Return its YAML likewise; `located` says what is refused."""
        try:
            parsed = located.parse(self.data, merges=merges)
        except located.MalformedYamlError as error:
            raise self.refusal(f"line {error.line}: {error.message}") from None
        try:
            return _adapter(shape).validate_python(parsed.data)
        except ValidationError as error:
            raise self._faulty(_faults(error, parsed, shape)) from None

    def base64(self) -> Document:
        """Return what it encodes."""
        try:
            return replace(self, data=b64decode(self.data, validate=True))
        except ValueError:
            raise self.refusal("it is not base64") from None

    def inflated(self) -> Document:
        """Decompress it (zlib or gzip); the limit holds for the result, too."""
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)  # tells the two formats apart
        try:
            data = unpacker.decompress(self.data, self.limit + 1)
        except zlib.error:
            raise self.refusal("it cannot be decompressed") from None
        if len(data) <= self.limit and not unpacker.eof:
            raise self.refusal("it cannot be decompressed: it is cut off")
        return replace(self, data=data)

    def _faulty(self, faults: list[str]) -> Unreadable:
        if len(faults) == 1:
            return self.refusal(faults[0])
        lines = "".join(f"\n  {short(fault)}" for fault in faults)
        return self.error(f"{self.what} has {len(faults)} errors:{lines}", self.fix)

    def refusal(self, why: str) -> Unreadable:
        """Return the error about this document."""
        return self.error(f"{self.what} cannot be read: {short(why)}", self.fix)


def file(
    path: Path,
    fix: str | None = None,
    *,
    limit: int = _FILE,
    error: type[Unreadable] = Unreadable,
) -> Document:
    """Read a file; see `Document` for the arguments.

    Raises:
        Missing: There is none.
        Unreadable: It is no file, too large, or forbidden.
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
    limit: int = _REPLY,
    error: type[Unreadable] = Unreadable,
) -> Document:
    """Return the answer of a program or a server as a `Document`, which has the arguments."""
    # The parser refuses lone surrogates.
    raw = data.encode(errors="surrogatepass") if isinstance(data, str) else data
    return Document(raw, what, fix, error, limit)


def _adapter(shape: type[T] | TypeAdapter[T]) -> TypeAdapter[T]:
    return shape if isinstance(shape, TypeAdapter) else _adapter_of(cast("Hashable", shape))


@cache  # making one takes longer than reading a line of progress with it
def _adapter_of(shape: Any) -> TypeAdapter[Any]:
    return TypeAdapter(shape)


def words(error: ValidationError) -> str:
    """Say where the first fault is, and which; never the value, which may be secret."""
    if error.error_count() > _FAULTS:  # to list them all takes longer than to find them
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


def _faults(error: ValidationError, document: located.Located, shape: Any) -> list[str]:
    """Return all faults, by line; for an unknown key, with the nearest known one."""
    if error.error_count() > _FAULTS:
        return [f"line 1: {words(error)}"]
    found: dict[located.Location, list[str]] = {}
    for where, details in wording.placed(error, document):
        how = _how(details, shape)
        if details["type"] == "extra_forbidden" and (known := shapes.suggestion(shape, where)):
            how += f" ({known})"
        found.setdefault(where, []).append(how)
    by_line = sorted(found.items(), key=lambda one: document.line(one[0]))
    return [
        f"line {document.line(where)}: {_placed(where, ', or '.join(dict.fromkeys(hows)))}"
        for where, hows in by_line
    ]


def tail(text: str, lines: int = 10, longest: int = 1000) -> str:
    """Return the last lines of what a program said, each as far as a person reads it."""
    return "\n".join(short(line, longest) for line in text[-_TAIL:].strip().splitlines()[-lines:])


def short(words: str, longest: int = _LONGEST) -> str:
    """Return words of any length and content as far as a person reads them on a terminal."""
    printable = "".join(c for c in words if c.isprintable())
    return printable if len(printable) <= longest else f"{printable[:longest]}…"


Line = Annotated[str, AfterValidator(lambda text: short(text, _LINE))]
"""Words of a node: as many as stand on a line or two, and none that moves a cursor."""
Name = Annotated[str, AfterValidator(lambda text: short(text, _NAME))]
"""What a node calls an account, a job or a thing."""
