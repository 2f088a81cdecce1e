"""Reads YAML and records the line of every value.

Accepts one document of plain data in UTF-8; refuses tags, duplicate keys, and anchors that expand
to too many values.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from gpubed.core import files
from gpubed.core.text import word_fault

_Loader = SafeConstructor
Key = str | int
Location = tuple[Key, ...]
MAX_BYTES = 262_144  # a specification with a thousand own hosts has fewer
_MAX_VALUES = 20_000
_MAX_DEPTH = 40
_MAX_OTHERS = 64 * 2**20
_VAULT = "$ANSIBLE_VAULT"  # begins a file that only Ansible can decrypt
_DISPUTED = frozenset("\t\ufeff?!%")  # libyaml accepts or reports them differently from PyYAML
_TAGS = {
    f"tag:yaml.org,2002:{name}"
    for name in ("map", "seq", "str", "int", "float", "bool", "null", "timestamp")
}
# Parts of the parser's messages and their meaning for the author; the first match is used.
_PROBLEMS = {
    r"found character '\t'": "a tab: write spaces instead",
    "expected <block end>": "it is not indented like the lines above it, or a '- ' is missing",
    "mapping values are not allowed": "a ': ' too many, or it is indented too far; "
    'text with ": " in it stands in quotes',
    "could not find expected ':'": "a key needs ': ' and its value",
    "while scanning a quoted scalar": "a quote is opened and not closed",
    "expected ',' or ']'": "a list that opens with [ needs commas, and ] at its end",
    "expected ',' or '}'": "a mapping that opens with { needs commas, and } at its end",
    "while parsing a flow": "a [ or { is opened and not closed",
}


class MalformedYamlError(ValueError):
    """The text is not YAML that gpubed reads; `line` counts from 1."""

    def __init__(self, message: str, line: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


@dataclass
class Located:
    """A document, its text, and the line of each of its values."""

    data: Any
    text: str = ""
    lines: dict[Location, int] = field(default_factory=dict)

    def line(self, location: Location) -> int:
        """Return the line of a value, or of the nearest value that contains it."""
        while location and location not in self.lines:
            location = location[:-1]
        return self.lines.get(location, 1)

    def place(self, location: Location, *, missing: bool = False) -> Location:
        """Return the place of one of pydantic's locations, without the tags of unions.

        `missing` keeps the last key although the document lacks it.
        """
        if missing:
            return (*self.place(location[:-1]), location[-1])
        place: Location = ()
        for part in location:
            place = (*place, part) if (*place, part) in self.lines else place
        return place


def read(path: Path) -> Located:
    """Read a YAML file; raises the errors of `parse`."""
    return parse(files.read(path, MAX_BYTES))


def parse(data: bytes, *, merges: bool = False) -> Located:
    """Parse a YAML document; raise `MalformedYamlError` if it is not UTF-8, not YAML, or ambiguous.

    `merges` allows merged mappings (`<<: *name`), as in other programs' files.
    """
    if len(data) > MAX_BYTES:  # the parser is slow
        raise MalformedYamlError(f"it has {len(data)} bytes; {MAX_BYTES} are the limit")
    text = _text(data)
    with _in_words(text):
        loader, root = _composed(text)
        document = Located(None, text)
        builder = _Builder(loader, document.lines, merges=merges)
        document.data = builder.build(root, ()) if root else None
    return document


def require_yaml(path: Path) -> None:
    """Raise an error unless a file is a YAML mapping; tags and anchors are allowed for Ansible."""
    text = _text(files.read(path, _MAX_OTHERS))
    if text.startswith(_VAULT):
        return
    with _in_words(text):
        # Parse disputed characters with libyaml, too, because Ansible does.
        _, root = _composed(text, disputed=frozenset())
    if root is not None and not isinstance(root, yaml.MappingNode):
        raise MalformedYamlError("must be a mapping of names to values", root.start_mark.line + 1)


@contextmanager
def _in_words(text: str) -> Iterator[None]:
    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = ", ".join(filter(None, (error.context, error.problem)))
        message = next((words for part, words in _PROBLEMS.items() if part in message), message)
        raise MalformedYamlError(message, mark.line + 1 if mark else 1) from None
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise MalformedYamlError(
            f"character #x{error.character:04x} is not allowed", line
        ) from None
    except RecursionError:
        raise MalformedYamlError(f"nested deeper than {_MAX_DEPTH} levels") from None


def _composed(text: str, disputed: frozenset[str] = _DISPUTED) -> tuple[_Loader, yaml.Node | None]:
    """Return the tree of a document, and the constructor of its values.

    Uses libyaml if PyYAML has it, which takes a tenth of the time. PyYAML parses again what libyaml
    refuses, because `_PROBLEMS` translates PyYAML's messages.
    """
    if yaml.__with_libyaml__ and not disputed.intersection(text):
        with suppress(yaml.YAMLError):
            quick = _Quick(text)
            return quick, quick.get_single_node()
    loader = yaml.SafeLoader(text)
    return loader, loader.get_single_node()


if yaml.__with_libyaml__:
    from yaml.cyaml import CParser  # type: ignore[attr-defined]

    class _Quick(Composer, CParser, SafeConstructor, Resolver):
        """libyaml's parser with Python's composer; libyaml's own crashes on deep nesting."""

        def __init__(self, text: str) -> None:
            CParser.__init__(self, text)
            Composer.__init__(self)
            SafeConstructor.__init__(self)
            Resolver.__init__(self)


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise MalformedYamlError("the file is not UTF-8 text", line) from None


def _require_text(value: object, line: int) -> None:
    r"""Refuse a text with a character such as "\0", which no command or file can hold."""
    if isinstance(value, str) and (why := word_fault(value)):
        raise MalformedYamlError(f"the text {value[:80]!r} {why}", line)


class _Builder:
    """Turns nodes into data; counts values to stop at an alias bomb."""

    def __init__(self, loader: _Loader, lines: dict[Location, int], *, merges: bool) -> None:
        self._loader, self._merges = loader, merges
        self._lines = lines
        self._values = 0

    def build(self, node: yaml.Node, at: Location) -> Any:
        line = node.start_mark.line + 1
        self._lines[at] = line
        self._values += 1
        if self._values > _MAX_VALUES:
            raise MalformedYamlError(f"more than {_MAX_VALUES} values (aliases expanded)", line)
        if len(at) > _MAX_DEPTH:
            raise MalformedYamlError(f"nested deeper than {_MAX_DEPTH} levels", line)
        if node.tag not in _TAGS:
            raise MalformedYamlError(f"the tag {node.tag!r} is not allowed", line)
        if isinstance(node, yaml.MappingNode):
            return dict(self._entries(node, at))
        if isinstance(node, yaml.SequenceNode):
            return [self.build(child, (*at, i)) for i, child in enumerate(node.value)]
        return self._scalar(node, line)

    def _scalar(self, node: yaml.Node, line: int) -> Any:
        try:
            value = self._loader.construct_object(node)
        except ValueError as error:  # such as the date 2026-13-45
            raise MalformedYamlError(f"not a valid value: {error}", line) from None
        except (LookupError, AttributeError):  # raised if a value does not fit its tag
            kind = node.tag.rpartition(":")[2]
            raise MalformedYamlError(
                f"not a valid value: {node.value!r} is no {kind}", line
            ) from None
        _require_text(value, line)
        return value

    def _entries(self, node: yaml.MappingNode, at: Location) -> Iterator[tuple[str, Any]]:
        keys: set[str] = set()
        if self._merges:
            self._loader.flatten_mapping(node)
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = key_node.value
            if not isinstance(key, str) or key_node.tag == "tag:yaml.org,2002:merge":
                raise MalformedYamlError("a key must be a plain word", line)
            _require_text(key, line)
            if key in keys and not self._merges:
                raise MalformedYamlError(f"the key {key!r} appears twice", line)
            keys.add(key)
            value = self.build(value_node, (*at, key))
            # The key's line, because an empty value has none.
            self._lines[(*at, key)] = line
            yield key, value
