"""What wrong specifications and commands are told stays as it is kept in tests/golden/errors."""

from support import golden


def test_each_error_is_told_as_before(tmp_path):
    found = golden.errors(tmp_path)
    kept = {f"errors/{path.name}" for path in (golden.GOLDEN / "errors").iterdir()}
    assert kept == set(found)
    assert [line for item in found.items() for line in golden.differences(*item)] == []
