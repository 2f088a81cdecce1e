"""Pulumi's protobuf messages and services, without the SDK around them.

`import pulumi.runtime.proto` loads the whole SDK first, which only programs need and
which takes longer than all else that a verb loads. The generated modules import one
another relatively: their folder is loaded as a package of its own.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pulumi.runtime.proto import (
        engine_pb2,
        engine_pb2_grpc,
        provider_pb2,
        provider_pb2_grpc,
        resource_pb2,
        resource_pb2_grpc,
    )
else:
    _PACKAGE = f"{__name__}_messages"

    def _package() -> ModuleSpec:
        sdk = importlib.util.find_spec("pulumi")
        package = ModuleSpec(_PACKAGE, None, is_package=True)
        folder = Path(sdk.origin).parent / "runtime" / "proto"
        package.submodule_search_locations = [str(folder)]
        return package

    sys.modules[_PACKAGE] = importlib.util.module_from_spec(_package())

    engine_pb2 = importlib.import_module(f"{_PACKAGE}.engine_pb2")
    engine_pb2_grpc = importlib.import_module(f"{_PACKAGE}.engine_pb2_grpc")
    provider_pb2 = importlib.import_module(f"{_PACKAGE}.provider_pb2")
    provider_pb2_grpc = importlib.import_module(f"{_PACKAGE}.provider_pb2_grpc")
    resource_pb2 = importlib.import_module(f"{_PACKAGE}.resource_pb2")
    resource_pb2_grpc = importlib.import_module(f"{_PACKAGE}.resource_pb2_grpc")

__all__ = [
    "engine_pb2",
    "engine_pb2_grpc",
    "provider_pb2",
    "provider_pb2_grpc",
    "resource_pb2",
    "resource_pb2_grpc",
]
