"""The JSON Schema of `cluster.yml`, for editors.

Rules about more than one value are checked only by `gpubed check`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpubed.recipes import recipe
from gpubed.spec import clusterspec

# Keys of bounds that pydantic writes beside `anyOf`, for numbers that may also be text with a unit.
_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of `cluster.yml`."""
    schema = clusterspec.model().model_json_schema()
    schema["required"] = [key for key in schema["required"] if key != "name"]
    schema["properties"]["recipe"]["enum"] = list(recipe.names())
    schema["properties"]["backend"] = _by_type(schema["properties"]["backend"])
    for part in list(_parts(schema)):
        _simplify(part)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _by_type(choice: dict[str, Any]) -> dict[str, Any]:
    """Choose the schema by `type`: editors do not explain why no option of a `oneOf` matches."""
    mapping = choice["discriminator"]["mapping"]
    return {
        "description": choice["description"],
        "type": "object",
        "required": ["type"],
        "properties": {"type": {"enum": sorted(mapping)}},
        "allOf": [
            {
                "if": {
                    "properties": {"type": {"enum": [n for n in mapping if mapping[n] == target]}},
                    "required": ["type"],
                },
                "then": {"$ref": target},
            }
            for target in sorted(set(mapping.values()))
        ],
    }


def _parts(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for each in inner:
        yield from _parts(each)


def _simplify(part: dict[str, Any]) -> None:
    """Replace an `anyOf`, since editors do not explain why no option of it matches."""
    if "anyOf" not in part:
        return
    options = list(_options(part))
    rest = [option for option in options if option != {"type": "null"}]
    if all(_is_of_one_type(option) for option in options):
        # Each keyword applies to values of its own type only.
        del part["anyOf"]
        merged = {key: value for option in options for key, value in option.items()}
        part |= merged | {"type": [option["type"] for option in options]} | part
    elif len(rest) == 1 and len(rest) < len(options):
        del part["anyOf"]
        part |= {"if": {"not": {"type": "null"}}, "then": rest[0]}


def _options(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the alternatives of a choice, those of nested choices included, with its bounds."""
    bounds = {name: part.pop(key) for key, name in _BOUNDS.items() if key in part}
    for option in part["anyOf"]:
        for inner in _options(option) if "anyOf" in option else [option]:
            number = inner.get("type") in ("number", "integer")
            yield inner | bounds if number else inner


def _is_of_one_type(option: dict[str, Any]) -> bool:
    return "type" in option and not {"const", "enum"} & set(option)
