"""Property values in memory, and their form on the wire.

A value is None, bool, int, float, str, list, dict, `Secret`, `Reference` or `UNKNOWN`. Assets and
archives are refused: a dynamic provider fails at the second update with one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf import struct_pb2

from gpubed.engines.embedded.failures import Refusal
from gpubed.testbeds.driver import UNKNOWN_TEXT

# Pulumi marks special values by well-known signatures; none of them is a credential.
SIGNATURE: Final = "4dabf18193072939515e22adb298388d"
SECRET: Final = "1b47061264138c4ac30d75fd1eb44270"  # noqa: S105
OUTPUT: Final = "d0e6a833031e9bbcd3f4e8bde6ca49a4"
REFERENCE: Final = "5cf8f73096256a8f31e491e813e4eb8e"
ASSETS: Final = ("c44067f5952c0a294b673a41bacd8c17", "0def7320c3a5731c473e5ecbe6d01bc7")

Properties = dict[str, Any]
# One step of a property path such as `disk.size` or `links[0]["rate"]`.
_STEP = re.compile(r"""\.?([^.\[\]"]+)|\[(\d+)\]|\["((?:[^"\\]|\\.)*)"\]""")
_ABSENT = object()


@dataclass(frozen=True)
class Secret:
    """A value that is encrypted on disk and hidden on screen."""

    value: Any


@dataclass(frozen=True)
class Reference:
    """A whole resource passed as a value; `id` is None for components."""

    urn: str
    id: Any = None


class Unknown:
    """A value that only an update will know."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = Unknown()


def from_struct(struct: struct_pb2.Struct) -> Properties:
    """Decode a property map."""
    return {key: _from_value(value) for key, value in struct.fields.items()}


def _from_value(value: struct_pb2.Value) -> Any:
    match value.WhichOneof("kind"):
        case "number_value":
            found = value.number_value
            return int(found) if found.is_integer() else found
        case "string_value":
            text = value.string_value
            return UNKNOWN if text == UNKNOWN_TEXT else text
        case "bool_value":
            return value.bool_value
        case "list_value":
            return [_from_value(item) for item in value.list_value.values]
        case "struct_value":
            return _envelope(from_struct(value.struct_value))
        case _:
            return None


def _envelope(fields: Properties) -> Any:
    match fields.get(SIGNATURE):
        case None:
            return fields
        case signature if signature == SECRET:
            return Secret(fields.get("value"))
        case signature if signature == OUTPUT:
            value = fields.get("value", UNKNOWN)
            return Secret(value) if fields.get("secret") else value
        case signature if signature == REFERENCE and "urn" in fields:
            return Reference(fields["urn"], fields.get("id"))
        case signature if signature in ASSETS:
            raise Refusal("assets and archives", "a property value")
        case _:
            raise Refusal("a property value of an unknown kind", "a property value")


def to_struct(properties: Mapping[str, Any], *, plain: bool = False) -> struct_pb2.Struct:
    """Encode a property map.

    `plain` is for providers that accept neither secrets nor references: it opens secrets and
    replaces a reference by its id.
    """
    struct = struct_pb2.Struct()
    struct.update(_wire(dict(properties), plain))
    return struct


def _wire(value: Any, plain: bool) -> Any:
    if isinstance(value, dict):
        return {key: _wire(item, plain) for key, item in value.items()}
    if isinstance(value, list):
        return [_wire(item, plain) for item in value]
    if isinstance(value, Secret):
        inner = _wire(value.value, plain)
        return inner if plain else {SIGNATURE: SECRET, "value": inner}
    if isinstance(value, Reference):
        if plain:
            return _wire(value.urn if value.id is None else value.id, plain)
        fields = {SIGNATURE: REFERENCE, "urn": value.urn}
        return fields if value.id is None else {**fields, "id": _wire(value.id, plain)}
    return UNKNOWN_TEXT if value is UNKNOWN else value


def equal(left: Any, right: Any) -> bool:
    """Compare two values as providers see them: a secret equals its plaintext, True is not 1."""
    left, right = _opened(left), _opened(right)
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(equal(left[k], right[k]) for k in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return bool(left == right)


def _opened(value: Any) -> Any:
    while isinstance(value, Secret):
        value = value.value
    return value


def changed_keys(old: Properties, new: Properties) -> tuple[str, ...]:
    """Return the top-level keys whose values differ."""
    keys = {**old, **new}
    return tuple(
        key for key in keys if (key in old) != (key in new) or not equal(old.get(key), new.get(key))
    )


def restore_secrets(plain: Properties, counterpart: Properties) -> Properties:
    """Mark the secrets again in the answer of a provider that sees only plaintext.

    An answer is secret where the like-named value of `counterpart`, the request, is.
    """
    restored = dict(plain)
    for key in restored.keys() & counterpart.keys():
        answer, given = restored[key], counterpart[key]
        if isinstance(answer, dict) and isinstance(given, dict):
            restored[key] = restore_secrets(answer, given)
        elif not isinstance(answer, Secret) and _contains_secret(given):
            restored[key] = Secret(answer)
    return restored


def _contains_secret(value: Any) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, Secret) or any(map(_contains_secret, inner))


def reveal(value: Any, *, show_secrets: bool) -> Any:
    """Return the value as users see it, with secrets decrypted or masked."""
    if isinstance(value, Secret):
        return reveal(value.value, show_secrets=show_secrets) if show_secrets else "[secret]"
    if isinstance(value, dict):
        return {key: reveal(item, show_secrets=show_secrets) for key, item in value.items()}
    if isinstance(value, list):
        return [reveal(item, show_secrets=show_secrets) for item in value]
    if isinstance(value, Reference):
        return value.urn if value.id is None else value.id
    return "[unknown]" if value is UNKNOWN else value


def keep_old(new: Properties, old: Properties, ignored: list[str]) -> Properties:
    """Return the new inputs with the old value at every ignored path."""
    kept: Any = new
    for path in ignored:
        steps = _steps(path)
        kept = _put(kept, steps, _get(old, steps))
    return dict(kept)


def _steps(path: str) -> list[str | int]:
    steps: list[str | int] = []
    position = 0
    while position < len(path):
        found = _STEP.match(path, position)
        if not found or "*" in found[0]:
            raise Refusal(f"the property path {path!r}", "ignoreChanges")
        key, index, quoted = found.groups()
        steps.append(int(index) if index else key or quoted.replace('\\"', '"'))
        position = found.end()
    return steps


def _get(value: Any, steps: list[str | int]) -> Any:
    for step in steps:
        value = value.value if isinstance(value, Secret) else value
        is_key = isinstance(value, dict) and step in value
        is_index = isinstance(value, list) and isinstance(step, int) and step < len(value)
        if not is_key and not is_index:
            return _ABSENT
        value = value[step]
    return value


def _put(container: Any, steps: list[str | int], value: Any) -> Any:
    """Return a copy with the value at the path; unchanged if the path leads nowhere."""
    if not steps:
        return value
    if isinstance(container, Secret):
        return Secret(_put(container.value, steps, value))
    step, rest = steps[0], steps[1:]
    if isinstance(container, list) and isinstance(step, int):
        if step >= len(container) or value is _ABSENT:
            return container
        return [_put(v, rest, value) if i == step else v for i, v in enumerate(container)]
    if not isinstance(container, dict) or (rest and step not in container):
        return container
    copy = {**container, str(step): _put(container.get(str(step)), rest, value)}
    return {key: item for key, item in copy.items() if item is not _ABSENT}
