"""Pulumi's protobuf messages and services, and property values in them.

`import pulumi.runtime.proto` would load the whole SDK, which only programs need and which takes
longer than all other imports of a verb. The generated modules import one another relatively, so
their folder is loaded as a package of its own.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from google.protobuf import struct_pb2

from gpubed.engines.embedded.events import Refusal
from gpubed.engines.embedded.values import (
    OTHERS,
    SECRET,
    SIGNATURE,
    UNKNOWN,
    UNKNOWN_TEXT,
    Properties,
    Secret,
)

_PACKAGE = f"{__name__}_messages"


def _package() -> ModuleSpec:
    sdk = importlib.util.find_spec("pulumi")
    assert sdk and sdk.origin  # noqa: S101, PT018
    package = ModuleSpec(_PACKAGE, None, is_package=True)
    package.submodule_search_locations = [str(Path(sdk.origin).parent / "runtime" / "proto")]
    return package


sys.modules[_PACKAGE] = importlib.util.module_from_spec(_package())
engine_pb2 = importlib.import_module(f"{_PACKAGE}.engine_pb2")
engine_pb2_grpc = importlib.import_module(f"{_PACKAGE}.engine_pb2_grpc")
provider_pb2 = importlib.import_module(f"{_PACKAGE}.provider_pb2")
provider_pb2_grpc = importlib.import_module(f"{_PACKAGE}.provider_pb2_grpc")
resource_pb2 = importlib.import_module(f"{_PACKAGE}.resource_pb2")
resource_pb2_grpc = importlib.import_module(f"{_PACKAGE}.resource_pb2_grpc")

CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", 400 * 1024 * 1024),
    ("grpc.max_send_message_length", 400 * 1024 * 1024),
    ("grpc.server_max_unrequested_time_in_server", 30 * 60),
    # The sockets are local: a proxy in the environment must not be used.
    ("grpc.enable_http_proxy", 0),
]


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
    signature = fields.get(SIGNATURE)
    if signature is None:
        return fields
    if signature == SECRET:
        return Secret(fields.get("value"))
    raise Refusal(OTHERS, "a property value")


def to_struct(properties: Mapping[str, Any], *, plain: bool = False) -> struct_pb2.Struct:
    """Encode a property map; `plain` opens secrets, for providers that accept none."""
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
    return UNKNOWN_TEXT if value is UNKNOWN else value
