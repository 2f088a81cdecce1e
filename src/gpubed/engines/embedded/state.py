"""One resource of the checkpoint, and its uniform resource name (URN)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import AfterValidator, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from gpubed.core import reading
from gpubed.engines.embedded.cipher import PassphraseCipher
from gpubed.engines.embedded.events import DamagedState, Refusal
from gpubed.engines.embedded.values import OTHERS, SECRET, SIGNATURE, Properties, Secret

STACK_TYPE = "pulumi:pulumi:Stack"


def urn_of(stack: str, project: str, parent: str, type_: str, name: str) -> str:
    """Return the URN of a resource; a parent other than the stack qualifies its type."""
    above = _parts(parent)[2] if parent else STACK_TYPE
    prefix = "" if above.rpartition("$")[2] == STACK_TYPE else f"{above}$"
    return f"urn:pulumi:{stack}::{project}::{prefix}{type_}::{name}"


def _parts(urn: str) -> list[str]:
    parts = urn.split("::", 3)
    if len(parts) != 4 or not urn.startswith("urn:pulumi:"):
        raise ValueError(f"not a Pulumi URN: {urn}")
    return parts


Urn = Annotated[str, AfterValidator(lambda urn: "::".join(_parts(urn)))]
"""A URN in a model."""


@dataclass(eq=False)
class State:
    """A resource's inputs, outputs and options; compared by identity.

    Two entries may share a URN while a replaced resource awaits deletion. The checkpoint has the
    names in camel case; `extra` keeps its other fields.
    """

    urn: Urn
    type: str
    custom: bool
    delete: bool = False
    id: str = ""
    inputs: Properties = field(default_factory=dict)
    outputs: Properties = field(default_factory=dict)
    parent: str = ""
    taint: bool = False
    dependencies: list[str] = field(default_factory=list)
    provider: str = ""
    property_dependencies: dict[str, list[str]] = field(default_factory=dict)
    pending_replacement: bool = False
    additional_secret_outputs: list[str] = field(default_factory=list)
    retain_on_delete: bool = False
    created: str = ""
    modified: str = ""
    source_position: str = ""
    extra: Properties = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The resource's name in the program, which may contain `::`."""
        return _parts(self.urn)[3]

    @property
    def is_provider(self) -> bool:
        """Whether the resource is a provider, which is only a record of a configuration."""
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
_UNSUPPORTED = (
    *("external", "protect", "deletedWith", "replaceWith", "replaceOnChanges", "viewOf"),
    *("replacementTrigger", "customTimeouts", "resourceHooks", "refreshBeforeUpdate"),
    "ignoreChanges",
)
_SHAPE = TypeAdapter(State)


def decode(raw: Mapping[str, Any], cipher: PassphraseCipher) -> State:
    """Decode a checkpoint entry."""
    # Go may write an empty list as null.
    fields = {py: raw[js] for py, js in _FIELDS.items() if raw.get(js) is not None}
    fields["extra"] = {key: raw[key] for key in raw if key not in _FIELDS.values()}
    if isinstance(needs := fields.get("property_dependencies"), dict):
        fields["property_dependencies"] = {key: urns or [] for key, urns in needs.items()}
    urn = str(raw.get("urn"))
    try:
        state = _SHAPE.validate_python(fields)
        for bag in (state.inputs, state.outputs):
            for key, value in bag.items():
                bag[key] = _decode_value(value, lambda sealed: cipher.decrypt(sealed, urn))
    except ValidationError as error:
        raise DamagedState(f"{urn[:200]}: {reading.words(error)[:200]}") from None
    except DamagedState as error:
        raise DamagedState(f"{urn[:200]}: {error.message}") from None
    except RecursionError:
        raise DamagedState(f"{urn[:200]} is nested without end") from None
    for key in _UNSUPPORTED:
        if raw.get(key):
            raise Refusal(f"the option {key}", state.name)
    return state


def encode(state: State, cipher: PassphraseCipher) -> Properties:
    """Return a checkpoint entry without its empty fields, as Pulumi writes it."""
    raw: Properties = {}
    for py, js in _FIELDS.items():
        value = getattr(state, py)
        if py in ("inputs", "outputs"):
            value = _encode_value(value, lambda text: cipher.encrypt(text, state.urn))
        if value or py == "custom":
            raw[js] = value
    return {**raw, **state.extra}


def _decode_value(value: Any, decrypt: Callable[[str], str]) -> Any:
    if isinstance(value, list):
        return [_decode_value(item, decrypt) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, dict):
        return value
    signature = value.get(SIGNATURE)
    if signature == SECRET:
        plaintext, ciphertext = value.get("plaintext"), value.get("ciphertext")
        if isinstance(ciphertext, str) and not isinstance(plaintext, str):
            plaintext = decrypt(ciphertext)
        if not isinstance(plaintext, str):
            raise DamagedState("a secret without a value")
        # Pulumi does not encrypt the envelope of a secret inside a secret.
        opened = reading.reply(plaintext, "a secret", error=DamagedState)
        return Secret(_decode_value(opened.json(object), str))
    if signature is not None:
        raise Refusal(OTHERS, "the state")
    return {key: _decode_value(item, decrypt) for key, item in value.items()}


def _encode_value(value: Any, encrypt: Callable[[str], str]) -> Any:
    if isinstance(value, Secret):
        plaintext = json.dumps(_encode_value(value.value, str), separators=(",", ":"))
        return {SIGNATURE: SECRET, "ciphertext": encrypt(plaintext)}
    if isinstance(value, dict):
        return {key: _encode_value(item, encrypt) for key, item in value.items()}
    if isinstance(value, list):
        return [_encode_value(item, encrypt) for item in value]
    return value
