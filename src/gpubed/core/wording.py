"""Rewords pydantic's errors for the author of a file, and suggests keys of its model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from gpubed.core import units, yaml_lines
from gpubed.core.text import nearest_name

_PATTERNS: dict[str, str] = {}
_FINITE = "must be a finite number"
_LIST, _MAPPING = "must be a list", "must be a mapping of keys to values"
_WHOLE, _NUMBER, _BOOL = "must be a whole number", "must be a number", "must be true or false"
# By pydantic's error type (a stable interface); braces are filled from the error's context.
_WORDS = {
    "extra_forbidden": "unknown key",
    "missing": "is missing",
    "list_type": _LIST,
    "tuple_type": _LIST,
    "dict_type": _MAPPING,
    "model_type": _MAPPING,
    "model_attributes_type": _MAPPING,
    "string_type": "must be a text",
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_from_float": _WHOLE,
    "finite_number": _FINITE,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "bool_type": _BOOL,
    "bool_parsing": _BOOL,
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must have at least {min_length}",
    "too_long": "must have at most {max_length}",
    "string_too_short": "must have at least {min_length} character(s)",
    "string_too_long": "must have at most {max_length} characters",
    "ip_v4_address": "must be an IPv4 address, such as 192.0.2.7",
    "union_tag_not_found": "is missing",
    "string_pattern_mismatch": "must be {words}",
}
_BOUNDS = {"ge", "gt", "le", "lt"}


def pattern(regex: str, words: str) -> str:
    """Return a field's pattern, whose errors will describe it as `words`: "letters and digits"."""
    _PATTERNS[regex] = words
    return regex


def errors(error: ValidationError) -> list[Any]:
    """Return pydantic's errors without those that only follow from others.

    Pydantic counts only valid items, so it reports a list with an invalid item as too short.
    """
    return [
        each
        for each in error.errors(include_url=False)
        if each["type"] != "too_short" or len(each["input"]) < each["ctx"]["min_length"]
    ]


def placed(
    error: ValidationError, document: yaml_lines.Located
) -> list[tuple[yaml_lines.Location, Any]]:
    """Return pydantic's errors with their places in a document.

    For a value of a union with an error inside, leaves out that the value is no other variant.
    """
    all_ = [(document.place(e["loc"], missing=e["type"] == "missing"), e) for e in errors(error)]
    return [
        (place, each)
        for place, each in all_
        if not each["type"].endswith(("_type", "literal_error"))
        or not any(len(other) > len(place) and other[: len(place)] == place for other, _ in all_)
    ]


def of(details: Mapping[str, Any], shape: Any = None) -> str:
    """Reword one of pydantic's errors without the value, which may be secret.

    Formats bounds in the unit of the field in the document's model, `shape`.
    """
    template, context = _WORDS.get(details["type"]), details.get("ctx", {})
    if template is None:
        how = str(details["msg"]).removeprefix("Value error, ")
    elif "pattern" in context:
        how = template.format(words=_PATTERNS.get(context["pattern"], context["pattern"]))
    elif _BOUNDS.intersection(context) and (write := _writer(shape, details["loc"])):
        how = template.format(**{name: write(value) for name, value in context.items()})
    else:
        how = template.format(**context)
    return f"its name {how}" if details["loc"][-1:] == ("[key]",) else how


def _writer(shape: Any, path: Sequence[str | int]) -> Callable[[float], str] | None:
    """Return the formatter for the unit of the field at a path."""
    pending = [_at(shape, path)]
    while pending:
        annotation = pending.pop()
        if get_origin(annotation) is Annotated:
            inner, *metadata = get_args(annotation)
            for each in metadata:
                if write := units.WRITERS.get(getattr(each, "func", None)):
                    return write
            pending.append(inner)
        elif get_origin(annotation) in (Union, UnionType):
            pending += get_args(annotation)
    return None


def suggestion(shape: Any, path: Sequence[str | int]) -> str:
    """Suggest a known key for the last key of a path; empty if any key is allowed."""
    fields = _fields(_model(_at(shape, path[:-1])))
    return nearest_name(str(path[-1]), fields) if fields else ""


def _at(shape: Any, path: Sequence[str | int]) -> Any:
    """Return the shape at one of pydantic's paths, which include union tags; None if unknown."""
    for part in path:
        variants = list(_variants(shape))
        if len(variants) > 1:
            shape = next((each for each in variants if part in _tags(each)), None)
        else:
            shape = _within(_model(shape), part)
    return shape


def _tags(shape: Any) -> tuple[Any, ...]:
    field = _model_fields(shape).get("type")
    return get_args(field.annotation) if field else ()


def _within(shape: Any, part: str | int) -> Any:
    origin, arguments = get_origin(shape), get_args(shape)
    if isinstance(part, str):
        is_mapping = isinstance(origin, type) and issubclass(origin, Mapping)
        return arguments[1] if is_mapping else _fields(shape).get(part)
    return arguments[0] if origin in (tuple, list) else None


def _model(shape: Any) -> Any:
    variants = list(_variants(shape))
    return variants[0] if len(variants) == 1 else None


def _variants(shape: Any) -> Iterator[Any]:
    origin = get_origin(shape)
    if origin is Annotated:
        yield from _variants(get_args(shape)[0])
    elif origin in (Union, UnionType):
        for each in get_args(shape):
            yield from _variants(each)
    elif origin or _fields(shape):
        yield shape


def _fields(shape: Any) -> dict[str, Any]:
    return {
        # `None`, because `Annotated` needs at least one annotation.
        field.alias or name: Annotated[(field.annotation, None, *field.metadata)]
        for name, field in _model_fields(shape).items()
    }


def _model_fields(shape: Any) -> dict[str, FieldInfo]:
    is_model = isinstance(shape, type) and issubclass(shape, BaseModel)
    return shape.model_fields if is_model else {}
