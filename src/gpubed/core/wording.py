"""Words pydantic's errors for the author of the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from gpubed.core import located, shapes, units

_PATTERNS: dict[str, str] = {}
_FINITE = "must be a finite number"
_LIST, _MAPPING = "must be a list", "must be a mapping of keys to values"
_WHOLE, _NUMBER, _BOOL = "must be a whole number", "must be a number", "must be true or false"
# By error type of pydantic (a stable interface); braces are filled from the error's context.
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
    """Register the words that describe a field's pattern in errors ("letters and digits")."""
    _PATTERNS[regex] = words
    return regex


def errors(error: ValidationError) -> list[Any]:
    """Return pydantic's errors without those that only follow from others.

    Pydantic counts only valid items, so it reports a list with an invalid item as too short.
    """
    found = error.errors(include_url=False)
    return [
        one
        for one in found
        if one["type"] != "too_short" or len(one["input"]) < one["ctx"]["min_length"]
    ]


def placed(error: ValidationError, document: located.Located) -> list[tuple[located.Location, Any]]:
    """Return pydantic's errors with their places in a document.

    For a union, errors about other variants are left out if an error lies within the value.
    """
    found = [(document.place(e["loc"], missing=e["type"] == "missing"), e) for e in errors(error)]
    return [
        (place, one)
        for place, one in found
        if not one["type"].endswith(("_type", "literal_error"))
        or not any(len(at) > len(place) and at[: len(place)] == place for at, _ in found)
    ]


def of(details: Mapping[str, Any], shape: Any = None) -> str:
    """Word one of pydantic's errors without the value, which may be secret.

    Bounds are formatted in the unit that the document's model (`shape`) gives them.
    """
    known, context = _WORDS.get(details["type"]), details.get("ctx", {})
    if known is None:
        how = str(details["msg"]).removeprefix("Value error, ")
    elif "pattern" in context:
        how = known.format(words=_PATTERNS.get(context["pattern"], context["pattern"]))
    elif _BOUNDS.intersection(context) and (write := _writer(shape, details["loc"])):
        how = known.format(**{name: write(value) for name, value in context.items()})
    else:
        how = known.format(**context)
    return f"its name {how}" if details["loc"][-1:] == ("[key]",) else how


def _writer(shape: Any, path: Sequence[str | int]) -> Callable[[float], str] | None:
    known = (units.WRITERS.get(getattr(one, "func", None)) for one in shapes.notes(shape, path))
    return next(filter(None, known), None)
