"""Property values in memory: compared, masked, and made secret again.

A value is None, bool, int, float, str, list, dict, `Secret` or `UNKNOWN`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from gpubed.testbeds.driver import UNKNOWN_TEXT as UNKNOWN_TEXT

# Pulumi marks special values by well-known signatures; none of them is a credential.
SIGNATURE: Final = "4dabf18193072939515e22adb298388d"
SECRET: Final = "1b47061264138c4ac30d75fd1eb44270"  # noqa: S105
OTHERS = "assets, archives, references and other special values"  # refused by the engine

Properties = dict[str, Any]


@dataclass(frozen=True)
class Secret:
    """A value that is encrypted on disk and hidden on screen."""

    value: Any


class Unknown:
    """A value that only `up` will compute."""


UNKNOWN: Final = Unknown()


def equal(left: Any, right: Any) -> bool:
    """Compare two values as providers see them: a secret equals its plaintext, True is not 1."""
    left, right = _opened(left), _opened(right)
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(equal(left[k], right[k]) for k in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return bool(left == right)


def _opened(value: Any) -> Any:
    while isinstance(value, Secret):
        value = value.value
    return value


def changed_keys(old: Properties, new: Properties) -> tuple[str, ...]:
    """Return the top-level keys whose values differ."""
    keys = {**old, **new}
    return tuple(
        key for key in keys if (key in old) != (key in new) or not equal(old.get(key), new.get(key))
    )


def restore_secrets(plain: Properties, counterpart: Properties) -> Properties:
    """Mark secrets in the answer of a provider, which gets and returns plaintext only.

    A value is secret if the value of the same name in `counterpart`, the request, is secret.
    """
    restored = dict(plain)
    for key in restored.keys() & counterpart.keys():
        answer, given = restored[key], counterpart[key]
        if isinstance(answer, dict) and isinstance(given, dict):
            restored[key] = restore_secrets(answer, given)
        elif not isinstance(answer, Secret) and _contains_secret(given):
            restored[key] = Secret(answer)
    return restored


def _contains_secret(value: Any) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, Secret) or any(map(_contains_secret, inner))


def reveal(value: Any, *, show_secrets: bool) -> Any:
    """Return the value as users see it, with secrets decrypted or masked."""
    if isinstance(value, Secret):
        return reveal(value.value, show_secrets=show_secrets) if show_secrets else "[secret]"
    if isinstance(value, dict):
        return {key: reveal(item, show_secrets=show_secrets) for key, item in value.items()}
    if isinstance(value, list):
        return [reveal(item, show_secrets=show_secrets) for item in value]
    return "[unknown]" if value is UNKNOWN else value
