"""Whatever is read, wherever it comes from: data, or one error that a user can act on.

FUZZ is how many changed documents each reader is given, other ones in each run; without it these
are a few, and the same ones.
"""

import os
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.mutations import mutants
from support.readers import READERS, check

CORPUS = Path(__file__).parents[1] / "fuzz" / "corpus"
FOUND = sorted(path for path in CORPUS.glob("*/*") if path.is_file())
SECONDS = 5
FUZZ = os.environ.get("FUZZ")
by_name = {reader.name: reader for reader in READERS}
each = pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)


@each
def test_what_is_right_is_read(reader, tmp_path):
    assert check(reader, reader.sample, tmp_path) is None


@each
@pytest.mark.parametrize(
    "data", [b"", b"\xff\xfe\x00", b"[" * 100_000], ids=["empty", "bytes", "deep"]
)
def test_what_is_nothing_is_refused_or_ignored(reader, data, tmp_path):
    check(reader, data, tmp_path)


@each
@settings(
    max_examples=int(FUZZ or 15),
    deadline=None,
    derandomize=not FUZZ,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_whatever_is_changed_is_refused_in_words_or_read(reader, data):
    document = data.draw(mutants(reader.sample, reader.dump))
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        check(reader, document, Path(folder))
    assert time.process_time() - started < SECONDS


@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_was_found_once_is_refused_in_words_or_read(path, tmp_path):
    check(by_name[path.parent.name], path.read_bytes(), tmp_path)
