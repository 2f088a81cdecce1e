"""Looks up a model's keys and annotations at a path of a document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gpubed.core import nearest


def suggestion(shape: Any, path: Sequence[str | int]) -> str:
    """Suggest a known key for the last one of a path; empty if any key is allowed."""
    known = _fields(_model(_at(shape, path[:-1])))
    return nearest.suggestion(str(path[-1]), known) if known else ""


def notes(shape: Any, path: Sequence[str | int]) -> Iterator[Any]:
    """Yield the annotations at a path, such as validators and bounds."""
    open_ = [_at(shape, path)]
    while open_:
        one = open_.pop()
        if get_origin(one) is Annotated:
            inner, *found = get_args(one)
            yield from found
            open_.append(inner)
        elif get_origin(one) in (Union, UnionType):
            open_ += get_args(one)


def _at(shape: Any, path: Sequence[str | int]) -> Any:
    """Return the shape at one of pydantic's paths, which include union tags; None if unknown."""
    for part in path:
        found = list(_parts(shape))
        if len(found) > 1:
            shape = next((one for one in found if part in _tags(one)), None)
        else:
            shape = _within(_model(shape), part)
    return shape


def _tags(shape: Any) -> tuple[Any, ...]:
    field = _of_model(shape).get("type")
    return get_args(field.annotation) if field else ()


def _within(shape: Any, part: str | int) -> Any:
    origin, arguments = get_origin(shape), get_args(shape)
    if isinstance(part, str):
        is_mapping = isinstance(origin, type) and issubclass(origin, Mapping)
        return arguments[1] if is_mapping else _fields(shape).get(part)
    return arguments[0] if origin in (tuple, list) else None


def _model(shape: Any) -> Any:
    found = list(_parts(shape))
    return found[0] if len(found) == 1 else None


def _parts(shape: Any) -> Iterator[Any]:
    origin = get_origin(shape)
    if origin is Annotated:
        yield from _parts(get_args(shape)[0])
    elif origin in (Union, UnionType):
        for one in get_args(shape):
            yield from _parts(one)
    elif origin or _fields(shape):
        yield shape


def _fields(shape: Any) -> dict[str, Any]:
    return {
        # `None`, because `Annotated` needs at least one annotation.
        field.alias or name: Annotated[(field.annotation, None, *field.metadata)]
        for name, field in _of_model(shape).items()
    }


def _of_model(shape: Any) -> dict[str, FieldInfo]:
    is_model = isinstance(shape, type) and issubclass(shape, BaseModel)
    return shape.model_fields if is_model else {}
