"""The ids of each check's results, as its function and what it uses of its module say them."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

_ID = re.compile(r"[a-z][a-z0-9]*\.[a-z_]+")


def ids(function: Callable[..., Any]) -> list[str]:
    """Return the ids of a check, sorted."""
    tree = ast.parse(inspect.getsource(sys.modules[function.__module__]))
    parts = {name: node for node in tree.body for name in _names(node)}
    # Other checks, whose names may be those of variables.
    others = {name for name, node in parts.items() if getattr(node, "decorator_list", [])}
    todo, seen = [function.__name__], set[str]()
    while todo:
        if (name := todo.pop()) in parts and name not in seen | others - {function.__name__}:
            seen.add(name)
            todo += [n.id for n in ast.walk(parts[name]) if isinstance(n, ast.Name)]
    texts = {text for name in seen for text in _texts(parts[name])}
    return sorted(t for t in texts if _ID.fullmatch(t))


def _names(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _texts(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value
