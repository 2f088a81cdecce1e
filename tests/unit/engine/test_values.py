"""Property values: the wire, equality and secrets."""

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st

from gpubed.engines.embedded.events import Refusal
from gpubed.engines.embedded.protocol import from_struct, to_struct
from gpubed.engines.embedded.values import (
    SIGNATURE,
    UNKNOWN,
    UNKNOWN_TEXT,
    Secret,
    changed_keys,
    equal,
    restore_secrets,
    reveal,
)

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text().filter(lambda text: text != UNKNOWN_TEXT),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | inner.map(Secret),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), plain))
def test_what_is_encoded_decodes_to_an_equal_value(properties):
    decoded = from_struct(to_struct(properties))
    assert decoded.keys() == properties.keys()
    assert all(equal(decoded[key], properties[key]) for key in properties)


def test_secrets_travel_in_envelopes_that_dynamic_providers_do_not_get():
    values = {"s": Secret({"deep": Secret(1)}), "u": UNKNOWN}
    secret = {SIGNATURE: "1b47061264138c4ac30d75fd1eb44270"}
    assert MessageToDict(to_struct(values)) == {
        "s": {**secret, "value": {"deep": {**secret, "value": 1.0}}},
        "u": UNKNOWN_TEXT,
    }
    assert MessageToDict(to_struct(values, plain=True)) == {"s": {"deep": 1.0}, "u": UNKNOWN_TEXT}


def test_assets_and_references_are_refused():
    for signature in ("c44067f5952c0a294b673a41bacd8c17", "5cf8f73096256a8f31e491e813e4eb8e"):
        with pytest.raises(Refusal, match="assets"):
            from_struct(to_struct({"a": {SIGNATURE: signature, "text": "x"}}))


def test_comparison_looks_through_secrets_and_tells_true_from_one():
    assert equal({"a": [Secret(1)]}, {"a": [1.0]})
    assert not equal(True, 1)
    before, after = {"a": 1, "b": 2, "c": None}, {"a": Secret(1), "b": 3, "d": 4}
    assert changed_keys(before, after) == ("b", "c", "d")


def test_secretness_returns_to_what_a_provider_echoes():
    counterpart = {
        "pw": Secret("x"),
        "map": {"k": Secret(1), "l": 2},
        "list": [Secret(1)],
        "gone": 1,
    }
    answer = {"pw": "x", "map": {"k": 1, "l": 2}, "list": [1], "new": 3}
    assert restore_secrets(answer, counterpart) == {
        "pw": Secret("x"),
        "map": {"k": Secret(1), "l": 2},
        "list": Secret([1]),
        "new": 3,
    }


def test_secrets_are_masked_unless_asked_for():
    value = {"a": [Secret({"b": Secret("x")})], "u": UNKNOWN}
    assert reveal(value, show_secrets=False) == {"a": ["[secret]"], "u": "[unknown]"}
    assert reveal(value, show_secrets=True)["a"] == [{"b": "x"}]
