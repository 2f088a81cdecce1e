"""One resource of the checkpoint, and its uniform resource name (URN)."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

from pydantic import AfterValidator, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from gpubed.core import reading
from gpubed.engines.embedded.failures import DamagedState, Refusal
from gpubed.engines.embedded.values import (
    ASSETS,
    REFERENCE,
    SECRET,
    SIGNATURE,
    Properties,
    Reference,
    Secret,
)

STACK_TYPE = "pulumi:pulumi:Stack"


def urn_of(stack: str, project: str, parent: str, type_: str, name: str) -> str:
    """Return the URN of a resource; a parent other than the stack qualifies its type."""
    above = _parts(parent)[2] if parent else STACK_TYPE
    prefix = "" if above.rpartition("$")[2] == STACK_TYPE else f"{above}$"
    return f"urn:pulumi:{stack}::{project}::{prefix}{type_}::{name}"


def type_of(urn: str) -> str:
    """Return the resource's own type."""
    return _parts(urn)[2].rpartition("$")[2]


def name_of(urn: str) -> str:
    """Return the resource's name, which may itself contain `::`."""
    return _parts(urn)[3]


def _parts(urn: str) -> list[str]:
    parts = urn.split("::", 3)
    if len(parts) != 4 or not urn.startswith("urn:pulumi:"):
        raise ValueError(f"not a Pulumi URN: {urn}")
    return parts


Urn = Annotated[str, AfterValidator(lambda urn: "::".join(_parts(urn)))]
"""A URN in a model."""


class Cipher(Protocol):
    """Encrypts and decrypts secrets; the scope is the resource's URN."""

    def encrypt(self, plaintext: str, scope: str = "") -> str:
        """Return the ciphertext."""

    def decrypt(self, ciphertext: str, scope: str = "") -> str:
        """Return the plaintext."""


@dataclass(eq=False)
class State:
    """A resource's inputs, outputs and options; compared by identity.

    Two entries may share a URN while a replaced resource awaits deletion. The checkpoint has the
    names in camel case; fields that are not here stay in `extra`.
    """

    urn: Urn
    type: str
    custom: bool
    delete: bool = False
    id: str = ""
    inputs: Properties = field(default_factory=dict)
    outputs: Properties = field(default_factory=dict)
    parent: str = ""
    protect: bool = False
    taint: bool = False
    dependencies: list[str] = field(default_factory=list)
    init_errors: list[str] = field(default_factory=list)
    provider: str = ""
    property_dependencies: dict[str, list[str]] = field(default_factory=dict)
    pending_replacement: bool = False
    additional_secret_outputs: list[str] = field(default_factory=list)
    retain_on_delete: bool = False
    created: str = ""
    modified: str = ""
    source_position: str = ""
    ignore_changes: list[str] = field(default_factory=list)
    extra: Properties = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The resource's name in the program."""
        return name_of(self.urn)

    @property
    def is_provider(self) -> bool:
        """Whether it is a provider, which only records its configuration."""
        return self.type.startswith("pulumi:providers:")

    @property
    def provider_urn(self) -> str:
        """The provider reference without its id."""
        return self.provider.rpartition("::")[0]

    def needs(self) -> Iterator[str]:
        """Yield the URNs that must be listed before this one, except the parent."""
        yield from self.dependencies
        for urns in self.property_dependencies.values():
            yield from urns
        if self.provider:
            yield self.provider_urn


_FIELDS = {one.name: to_camel(one.name) for one in dataclasses.fields(State)}
del _FIELDS["extra"]
_UNSUPPORTED = {
    "external": "resources that are only read",
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
    """Decode a checkpoint entry.

    Raises:
        DamagedState: The entry is malformed.
        Refusal: The entry uses an option the engine does not implement.
    """
    # Go may write an empty list as null.
    known = {py: raw[js] for py, js in _FIELDS.items() if raw.get(js) is not None}
    known["extra"] = {key: raw[key] for key in raw if key not in _FIELDS.values()}
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
    """Return a checkpoint entry without its empty fields, as Pulumi writes it."""
    raw: Properties = {}
    for py, js in _FIELDS.items():
        value = getattr(state, py)
        if value or py == "custom":
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
    signature = value.get(SIGNATURE)
    if signature == SECRET:
        plaintext, ciphertext = value.get("plaintext"), value.get("ciphertext")
        if isinstance(ciphertext, str) and not isinstance(plaintext, str):
            plaintext = cipher.decrypt(ciphertext, urn)
        if not isinstance(plaintext, str):
            raise DamagedState(f"{urn} has a secret without a value")
        opened = reading.reply(plaintext, f"a secret of {urn}", error=DamagedState)
        return Secret(_decode_value(opened.json(object), _NESTED, urn))
    if signature == REFERENCE:
        if not isinstance(value.get("urn"), str):
            raise DamagedState(f"{urn} refers to nothing")
        return Reference(value["urn"], value.get("id"))
    if signature in ASSETS:
        raise Refusal("assets and archives", name_of(urn))
    return {key: _decode_value(item, cipher, urn) for key, item in value.items()}


def _decode_number(value: float, urn: str) -> int | float:
    try:
        if math.isfinite(value):  # as the float that it is on the wire
            return int(value) if isinstance(value, float) and value.is_integer() else value
    except OverflowError:
        pass
    raise DamagedState(f"{urn} has a number that no engine writes")


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
    """Keeps the envelope of a secret inside a secret without encrypting it, as Pulumi does."""

    def encrypt(self, plaintext: str, scope: str = "") -> str:
        return plaintext

    decrypt = encrypt


_NESTED: Cipher = _NestedCipher()
