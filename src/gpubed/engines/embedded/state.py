"""One resource as the checkpoint records it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import TypeAdapter, ValidationError

from gpubed.core import reading
from gpubed.engines.embedded.failures import DamagedState, Refusal
from gpubed.engines.embedded.urn import Urn, name_of
from gpubed.engines.embedded.values import (
    ASSETS,
    REFERENCE,
    SECRET,
    SIGNATURE,
    Properties,
    Reference,
    Secret,
)


class Cipher(Protocol):
    """Seals and opens secrets; the scope is the resource's URN."""

    def encrypt(self, plaintext: str, scope: str = "") -> str:
        """Returns the ciphertext."""

    def decrypt(self, ciphertext: str, scope: str = "") -> str:
        """Returns the plaintext."""


@dataclass(eq=False)
class State:
    """A resource's inputs, outputs and options; compared by identity.

    Two entries may share a URN while a replaced resource awaits deletion.
    Fields the engine only carries along stay in `extra`.
    """

    urn: Urn
    type: str
    custom: bool
    id: str = ""
    inputs: Properties = field(default_factory=dict)
    outputs: Properties = field(default_factory=dict)
    parent: str = ""
    provider: str = ""
    dependencies: list[str] = field(default_factory=list)
    property_dependencies: dict[str, list[str]] = field(default_factory=dict)
    protect: bool = False
    taint: bool = False
    retain_on_delete: bool = False
    delete: bool = False
    external: bool = False
    pending_replacement: bool = False
    ignore_changes: list[str] = field(default_factory=list)
    additional_secret_outputs: list[str] = field(default_factory=list)
    init_errors: list[str] = field(default_factory=list)
    created: str = ""
    modified: str = ""
    source_position: str = ""
    extra: Properties = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The resource's name in the program."""
        return name_of(self.urn)

    @property
    def provider_urn(self) -> str:
        """The provider reference without its id."""
        return self.provider.rpartition("::")[0]

    def needs(self) -> Iterator[str]:
        """Yields the URNs that must be listed before this one, the parent excepted."""
        yield from self.dependencies
        for urns in self.property_dependencies.values():
            yield from urns
        if self.provider:
            yield self.provider_urn


# Python name → name in the checkpoint, in the order Pulumi writes them.
_FIELDS = {
    "delete": "delete",
    "id": "id",
    "type": "type",
    "inputs": "inputs",
    "outputs": "outputs",
    "parent": "parent",
    "protect": "protect",
    "taint": "taint",
    "external": "external",
    "dependencies": "dependencies",
    "init_errors": "initErrors",
    "provider": "provider",
    "property_dependencies": "propertyDependencies",
    "pending_replacement": "pendingReplacement",
    "additional_secret_outputs": "additionalSecretOutputs",
    "retain_on_delete": "retainOnDelete",
    "created": "created",
    "modified": "modified",
    "source_position": "sourcePosition",
    "ignore_changes": "ignoreChanges",
}
_UNSUPPORTED = {
    "deletedWith": "the option deletedWith",
    "replaceWith": "the option replaceWith",
    "replaceOnChanges": "the option replaceOnChanges",
    "replacementTrigger": "the option replacementTrigger",
    "customTimeouts": "the option customTimeouts",
    "resourceHooks": "resource hooks",
    "viewOf": "resource views",
    "refreshBeforeUpdate": "refreshBeforeUpdate",
}
_SHAPE = TypeAdapter(State)


def decode(raw: Mapping[str, Any], cipher: Cipher) -> State:
    """Reads a checkpoint entry.

    Raises:
        DamagedState: It is no entry.
        Refusal: The entry uses an option the engine does not implement.
    """
    used = {"urn", "custom", *_FIELDS.values()}
    # Go writes a list without entries as null, too.
    known = {py: raw[js] for py, js in _FIELDS.items() if raw.get(js) is not None}
    known |= {key: raw[key] for key in ("urn", "custom") if key in raw}
    known["extra"] = {key: value for key, value in raw.items() if key not in used}
    if isinstance(needs := known.get("property_dependencies"), dict):
        known["property_dependencies"] = {key: urns or [] for key, urns in needs.items()}
    try:
        state = _SHAPE.validate_python(known)
        state.inputs = _decode_value(state.inputs, cipher, state.urn)
        state.outputs = _decode_value(state.outputs, cipher, state.urn)
    except ValidationError as error:
        raise DamagedState(f"{str(raw.get('urn'))[:200]}: {reading.words(error)[:200]}") from None
    except RecursionError:
        raise DamagedState(f"{raw['urn']} is nested without end") from None
    for key, feature in _UNSUPPORTED.items():
        if raw.get(key):
            raise Refusal(feature, state.name)
    return state


def encode(state: State, cipher: Cipher) -> Properties:
    """Writes a checkpoint entry; empty fields are left out, as Pulumi does."""
    raw: Properties = {"urn": state.urn, "custom": state.custom}
    for py, js in _FIELDS.items():
        value = getattr(state, py)
        if value:
            bag = py in ("inputs", "outputs")
            raw[js] = _encode_value(value, cipher, state.urn) if bag else value
    return {**raw, **state.extra}


def _decode_value(value: Any, cipher: Cipher, urn: str) -> Any:
    if isinstance(value, list):
        return [_decode_value(item, cipher, urn) for item in value]
    if isinstance(value, int | float):
        return _decode_number(value, urn)
    if not isinstance(value, dict):
        return value
    match value.get(SIGNATURE):
        case signature if signature == SECRET:
            plaintext = reading.reply(
                _plaintext(value, cipher, urn), f"a secret of {urn}", error=DamagedState
            )
            return Secret(_decode_value(plaintext.json(object), _NESTED, urn))
        case signature if signature == REFERENCE:
            if not isinstance(value.get("urn"), str):
                raise DamagedState(f"{urn} refers to nothing")
            return Reference(value["urn"], value.get("id"))
        case signature if signature in ASSETS:
            raise Refusal("assets and archives", name_of(urn))
    return {key: _decode_value(item, cipher, urn) for key, item in value.items()}


def _decode_number(value: float, urn: str) -> int | float:
    try:
        travels = math.isfinite(value)  # as a float, whatever it is here
    except OverflowError:
        travels = False
    if not travels:
        raise DamagedState(f"{urn} has a number that no engine writes")
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _plaintext(envelope: Properties, cipher: Cipher, urn: str) -> str:
    plaintext, ciphertext = envelope.get("plaintext"), envelope.get("ciphertext")
    if isinstance(plaintext, str):
        return plaintext
    if isinstance(ciphertext, str):
        return cipher.decrypt(ciphertext, urn)
    raise DamagedState(f"{urn} has a secret without a value")


def _encode_value(value: Any, cipher: Cipher, urn: str) -> Any:
    if isinstance(value, Secret):
        plaintext = json.dumps(_encode_value(value.value, _NESTED, urn), separators=(",", ":"))
        return {SIGNATURE: SECRET, "ciphertext": cipher.encrypt(plaintext, urn)}
    if isinstance(value, Reference):
        fields: Properties = {SIGNATURE: REFERENCE, "urn": value.urn, "packageVersion": ""}
        return fields if value.id is None else {**fields, "id": value.id}
    if isinstance(value, dict):
        return {key: _encode_value(item, cipher, urn) for key, item in value.items()}
    if isinstance(value, list):
        return [_encode_value(item, cipher, urn) for item in value]
    return value


class _NestedCipher:
    """Inside a secret, Pulumi keeps the envelope of inner secrets but does not seal them."""

    def encrypt(self, plaintext: str, scope: str = "") -> str:
        return plaintext

    def decrypt(self, ciphertext: str, scope: str = "") -> str:
        return ciphertext


_NESTED = _NestedCipher()
