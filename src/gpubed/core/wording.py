"""Pydantic's errors in the words of whoever wrote the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_FINITE = "must be a finite number"
_LIST, _MAPPING = "must be a list", "must be a mapping of keys to values"
_WHOLE, _NUMBER, _BOOL = "must be a whole number", "must be a number", "must be true or false"
# Error types of pydantic, which are its interface; braces take what belongs to the error.
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
}


def of(details: Mapping[str, Any]) -> str:
    """Say what is wrong with a value, without the value: it may be secret."""
    known = _WORDS.get(details["type"])
    if known is None:
        return str(details["msg"]).removeprefix("Value error, ")
    return known.format(**details.get("ctx", {}))
