"""What lists itself: a module with the entry point is one, a helper is in nobody's way."""

import pytest

from gpubed.core.files import modules_with


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("def create():\n    ...\n", True),
        ("create = other\n", True),
        ('"""Words.\n\ncreate: makes one\ncreate(it)\n"""\n', False),
        ("create: int = 1\n", True),
        ("def created():\n    ...\n", False),
        ("class Made:\n    def create(self):\n        ...\n", False),
        ("# def create():\n", False),
        ("from elsewhere import create\n", False),
    ],
)
def test_an_entry_has_its_entry_point_at_the_top(tmp_path, text, is_one):
    (tmp_path / "one.py").write_text(text)
    (tmp_path / "_two.py").write_text("def create():\n    ...\n")
    assert modules_with(tmp_path, "create") == (("one",) if is_one else ())
