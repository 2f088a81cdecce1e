"""Uniform resource names: how Pulumi identifies a resource in a stack."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

STACK_TYPE = "pulumi:pulumi:Stack"


def build(stack: str, project: str, parent: str, type_: str, name: str) -> str:
    """Returns the URN of a resource; a parent other than the stack qualifies its type."""
    prefix = ""
    if parent and type_of(parent) != STACK_TYPE:
        prefix = f"{qualified_type(parent)}$"
    return f"urn:pulumi:{stack}::{project}::{prefix}{type_}::{name}"


def qualified_type(urn: str) -> str:
    """Returns the type with its parents' types, as in `a:b:C$d:e:F`."""
    return _parts(urn)[2]


def type_of(urn: str) -> str:
    """Returns the resource's own type."""
    return qualified_type(urn).rpartition("$")[2]


def name_of(urn: str) -> str:
    """Returns the resource's name, which may itself contain `::`."""
    return _parts(urn)[3]


def _parts(urn: str) -> list[str]:
    parts = urn.split("::", 3)
    if len(parts) != 4 or not urn.startswith("urn:pulumi:"):
        raise ValueError(f"not a Pulumi URN: {urn}")
    return parts


def _whole(urn: str) -> str:
    _parts(urn)
    return urn


Urn = Annotated[str, AfterValidator(_whole)]
"""A URN in a model."""
