"""What the keys of a file mean, from its JSON Schema: a section for each part, in its order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from gpubed.core.units import format_bytes, format_rate, format_seconds

# What a pattern of the schema reads, told by a unit that it alone has.
_QUANTITIES = {
    "min": ("duration", format_seconds),
    "GiB": ("size", format_bytes),
    "Gbit": ("rate", format_rate),
}
UNITS = """## Quantities

| | units | a number alone |
| --- | --- | --- |
| duration | `ms`, `s`, `min`, `h`, `d`: `24 h` | seconds |
| size | `B`, `KiB`, `MiB`, `GiB`, `TiB`, and `KB`, `MB`, `GB`, `TB` of 1000: `6 GiB` | bytes |
| rate | `kbit/s`, `Mbit/s`, `Gbit/s`, `Tbit/s`: `200 Mbit/s` | bit/s |
"""


def sections(schema: dict[str, Any]) -> Iterator[str]:
    """Yield the lines about a file and each of its parts."""
    known = _Known(schema.get("$defs", {}))
    places = known.sections(schema)
    yield from _section("The file", schema, known)
    for where, name in places:
        yield from _section(where, known.definitions[name], known)


class _Known:
    """The parts of the file, and where each stands in it."""

    def __init__(self, definitions: dict[str, Any]) -> None:
        self.definitions = definitions
        self._places: dict[str, str] = {}

    def sections(self, schema: dict[str, Any]) -> list[tuple[str, str]]:
        """Return each part's place and name, in the file's order, its own parts after it."""
        self._walk("", schema)
        return [(where, name) for name, where in self._places.items()]

    def place(self, name: str) -> str:
        """Return where a part stands in the file, such as `lease.renewal`."""
        return self._places.get(name) or _backend(name)

    def _walk(self, where: str, definition: dict[str, Any]) -> None:
        for key, field in definition.get("properties", {}).items():
            for name, many in _references(field):
                if name in self._places:
                    continue
                path = f"{where}.{key}" if where else key
                backend = _backend(name) if key == "backend" and not where else ""
                self._places[name] = backend or f"{path}{'[]' if many else ''}"
                self._walk(self._places[name], self.definitions[name])


def _backend(name: str) -> str:
    """Return what a testbed's options are called; empty for any other part."""
    modules = name.split("__")
    return f"backend {modules[modules.index('backends') + 1]}" if "backends" in modules else ""


def _references(field: Any, *, many: bool = False) -> Iterator[tuple[str, bool]]:
    """Yield the parts that a key leads to, and whether it has several of them."""
    if isinstance(field, list):
        for inner in field:
            yield from _references(inner, many=many)
    if not isinstance(field, dict):
        return
    if "$ref" in field:
        yield field["$ref"].rsplit("/", 1)[-1], many
    several = field.get("type") == "array" or "additionalProperties" in field
    for key in ("then", "anyOf", "oneOf", "allOf", "items", "additionalProperties"):
        yield from _references(field.get(key), many=many or several)
    yield from _references(list(field.get("patternProperties", {}).values()), many=True)


def _section(title: str, definition: dict[str, Any], known: _Known) -> Iterator[str]:
    yield f"## {title}\n"
    if text := definition.get("description", "").strip():
        yield f"{text}\n"
    yield "| key | type | default | |\n| --- | --- | --- | --- |"
    required = definition.get("required", ())
    for key, field in definition.get("properties", {}).items():
        default = "required" if key in required else _default(field)
        yield f"| `{key}` | {_type(field, known)} | {default} | {field.get('description', '')} |"
    yield ""


def _type(field: dict[str, Any], known: _Known) -> str:
    if "$ref" in field:
        return _link(field["$ref"].rsplit("/", 1)[-1], known)
    if field.get("allOf"):
        return " or ".join(_link(name, known) for name, _ in _references(field["allOf"]))
    if "then" in field:
        return f"{_type(field['then'], known)} or none"
    if "anyOf" in field:
        return " or ".join(_type(option, known) for option in field["anyOf"])
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    if quantity := _quantity(field):
        return quantity[0]
    named = [*field.get("patternProperties", {}).values(), field.get("additionalProperties")]
    if isinstance(named[0], dict):
        return f"mapping of names to {_type(named[0], known)}"
    kinds = field.get("type", "any")
    if "array" in kinds:
        either = " or none" if "null" in kinds else ""
        return f"list of {_type(field.get('items', {}), known)}{either}"
    return " or ".join([kinds] if isinstance(kinds, str) else kinds).replace("null", "none")


def _link(name: str, known: _Known) -> str:
    place = known.place(name)
    anchor = "".join(c for c in place.lower().replace(" ", "-") if c.isalnum() or c in "-_")
    return f"[{place}](#{anchor})"


def _quantity(field: dict[str, Any]) -> tuple[str, Any] | None:
    """Return what a key measures and how a person writes it; None where it is no quantity."""
    options = [field, *field.get("anyOf", ()), field.get("then", {})]
    patterns = " ".join(str(option.get("pattern", "")) for option in options)
    return next((found for unit, found in _QUANTITIES.items() if f"{unit}" in patterns), None)


def _default(field: dict[str, Any]) -> str:
    if "default" not in field:
        return ""
    value = field["default"]
    if value is None:
        return "none"
    if isinstance(value, dict):
        return "its own defaults" if value else "`{}`"
    quantity = _quantity(field)
    if quantity and isinstance(value, int | float):
        return f"`{quantity[1](value)}`" if value else "`0`"
    return f"`{json.dumps(value)}`"
