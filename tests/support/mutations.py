"""Documents as nobody wrote them: bytes and values changed, drawn by Hypothesis."""

import copy
import json

import yaml
from hypothesis import strategies as st

# What breaks readers more often than random bytes do.
WORDS = [
    b"", b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\r\n", *(bytes([n]) for n in b'"<>&{}[]:,=|0'),
    b"-1", b"1e400", b"NaN", b"9" * 30, b"9" * 5000, b"null", b"true", b'"\\ud800"', b"[" * 1000,
    b"<a>" * 300, b"&x;", b"<!DOCTYPE a>", b"*a", b"&a ", b"!!x ", "٣é".encode(),
]  # fmt: skip
VALUES = [
    None, True, 0, -1, 1.5, 10**30, 10**400, 1e308, float("nan"), float("inf"), "", "x" * 5000,
    "\x00", "\x1b[31m", "٣é", "a:b", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00",
    "2026-11-22T00:00:00", [], {}, [None], [[[[]]]], {"": {"": None}},
]  # fmt: skip


def mutants(sample, dump=None):
    """Return a strategy of documents that differ from a sample, or resemble nothing."""
    ways = [_edited(sample), st.binary(max_size=300)]
    if dump:
        ways.append(_changed(sample, dump))
    return st.one_of(ways)


def json_text(value):
    return json.dumps(value).encode()


def json_line(value):
    return json_text(value) + b"\n"


def yaml_text(value):
    return yaml.safe_dump(value, allow_unicode=True).encode("utf-8", errors="surrogatepass")


@st.composite
def _edited(draw, sample):
    data = bytearray(sample)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 40)))
        new = draw(st.sampled_from(WORDS) | st.binary(max_size=4))
        match draw(st.sampled_from(["replace", "insert", "cut", "repeat"])):
            case "replace":
                data[start:end] = new
            case "insert":
                data[start:start] = new
            case "cut":
                del data[start:]
            case "repeat":
                data[end:end] = data[start:end] * draw(st.integers(1, 20))
    return bytes(data)


@st.composite
def _changed(draw, sample, dump):
    document = yaml.safe_load(sample)
    for _ in range(draw(st.integers(1, 2))):
        places = list(_places(document))
        if not places:
            break
        owner, key = draw(st.sampled_from(places))
        match draw(st.sampled_from(["value", "remove", "rename", "nest"])):
            case "value":
                owner[key] = copy.deepcopy(draw(st.sampled_from(VALUES)))
            case "remove":
                del owner[key]
            case "rename" if isinstance(owner, dict):
                owner[draw(st.text(max_size=5))] = owner.pop(key)
            case _:
                owner[key] = [owner[key]]
    return dump(document)


def _places(value):
    keys = range(len(value)) if isinstance(value, list) else list(value)
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])
