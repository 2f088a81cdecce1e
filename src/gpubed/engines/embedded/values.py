"""Property values in memory, and their form on the wire.

A value is None, bool, int, float, str, list, dict, `Secret`, `Reference` or `UNKNOWN`.
Assets and archives are refused: no dynamic provider survives a second update with one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf import struct_pb2  # type: ignore[import-untyped]

from gpubed.engines.embedded.failures import Refusal
from gpubed.testbeds.driver import UNKNOWN_TEXT

# Pulumi marks special values by well-known signatures; none of them is a credential.
SIGNATURE: Final = "4dabf18193072939515e22adb298388d"
SECRET: Final = "1b47061264138c4ac30d75fd1eb44270"  # noqa: S105
OUTPUT: Final = "d0e6a833031e9bbcd3f4e8bde6ca49a4"
REFERENCE: Final = "5cf8f73096256a8f31e491e813e4eb8e"
ASSETS: Final = ("c44067f5952c0a294b673a41bacd8c17", "0def7320c3a5731c473e5ecbe6d01bc7")

Properties = dict[str, Any]


@dataclass(frozen=True)
class Secret:
    """A value that is encrypted at rest and hidden on screen."""

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
    """Decodes a property map."""
    return {key: _from_value(value) for key, value in struct.fields.items()}


def _from_value(value: struct_pb2.Value) -> Any:
    match value.WhichOneof("kind"):
        case "number_value":
            return number(value.number_value)
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


def number(value: float) -> int | float:
    """Numbers travel as floats; integral ones are written without a fraction."""
    return int(value) if value.is_integer() else value


def to_struct(properties: Mapping[str, Any], *, plain: bool = False) -> struct_pb2.Struct:
    """Encodes a property map.

    Args:
        properties: The values.
        plain: For providers that accept neither secrets nor references:
            secrets are opened and a reference becomes its id.
    """
    struct = struct_pb2.Struct()
    for key, value in properties.items():
        _to_value(value, struct.fields[key], plain)
    return struct


def _to_value(value: Any, target: struct_pb2.Value, plain: bool) -> None:
    if value is None:
        target.null_value = struct_pb2.NULL_VALUE
    elif isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, (int, float)):
        target.number_value = value
    elif isinstance(value, str):
        target.string_value = value
    elif isinstance(value, list):
        target.list_value.SetInParent()
        for item in value:
            _to_value(item, target.list_value.values.add(), plain)
    else:
        _compound_to_value(value, target, plain)


def _compound_to_value(value: Any, target: struct_pb2.Value, plain: bool) -> None:
    if value is UNKNOWN:
        target.string_value = UNKNOWN_TEXT
    elif isinstance(value, dict):
        target.struct_value.SetInParent()
        for key, item in value.items():
            _to_value(item, target.struct_value.fields[key], plain)
    elif isinstance(value, Secret):
        _to_value(value.value if plain else _wrapped(value), target, plain)
    elif isinstance(value, Reference):
        # Dynamic providers know no references; Pulumi gives them the id instead.
        text = value.urn if value.id is None else value.id
        _to_value(text if plain else _wrapped(value), target, plain)
    else:
        raise TypeError(f"not a property value: {type(value).__name__}")


def _wrapped(value: Secret | Reference) -> Properties:
    if isinstance(value, Secret):
        return {SIGNATURE: SECRET, "value": value.value}
    fields: Properties = {SIGNATURE: REFERENCE, "urn": value.urn}
    return fields if value.id is None else {**fields, "id": value.id}


def equal(left: Any, right: Any) -> bool:
    """Compares two values as providers see them: secretness aside, True is not 1."""
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
    """Returns the top-level keys whose values differ."""
    keys = {**old, **new}
    return tuple(
        key for key in keys if (key in old) != (key in new) or not equal(old.get(key), new.get(key))
    )


def contains_secret(value: Any) -> bool:
    """Returns whether a secret hides anywhere in the value."""
    if isinstance(value, Secret):
        return True
    if isinstance(value, dict):
        return any(map(contains_secret, value.values()))
    return isinstance(value, list) and any(map(contains_secret, value))


def restore_secrets(plain: Properties, counterpart: Properties) -> Properties:
    """Marks again what a provider that sees only plaintext has returned.

    Args:
        plain: What the provider answered.
        counterpart: What it was given; a like-named secret makes the answer secret.
    """
    restored = dict(plain)
    for key, given in counterpart.items():
        answer = restored.get(key)
        if key not in restored:
            continue
        if isinstance(answer, dict) and isinstance(given, dict):
            restored[key] = restore_secrets(answer, given)
        elif not isinstance(answer, Secret) and contains_secret(given):
            restored[key] = Secret(answer)
    return restored


def reveal(value: Any, *, show_secrets: bool) -> Any:
    """Returns the value as users see it, with secrets opened or masked."""
    if isinstance(value, Secret):
        return reveal(value.value, show_secrets=show_secrets) if show_secrets else "[secret]"
    if isinstance(value, dict):
        return {key: reveal(item, show_secrets=show_secrets) for key, item in value.items()}
    if isinstance(value, list):
        return [reveal(item, show_secrets=show_secrets) for item in value]
    if isinstance(value, Reference):
        return value.urn if value.id is None else value.id
    return "[unknown]" if value is UNKNOWN else value
