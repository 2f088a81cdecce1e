"""Where a report goes, what it replaces there, and what becomes of it on a full disk."""

import errno
import json
import os

import pytest

from gpubed.core import files
from gpubed.core.errors import PrerequisiteMissing, UsageError
from support import measurements
from support.report_verb import call, paths

__all__ = ["paths"]


def test_figures_of_an_earlier_report_go_and_those_of_others_stay(paths):
    folder = measurements.write(paths)
    call()
    figures = folder / "report" / "figures"
    (figures / "mine.svg").write_text("mine")
    told = json.loads((folder / "report" / "report.json").read_text())
    assert sorted(told["figures"]) == sorted(
        f"figures/{path.name}" for path in figures.iterdir() if path.name != "mine.svg"
    )
    for path in (folder / "points").glob("*.json"):
        path.write_text("{")
    call()
    left = {path.stem for path in figures.iterdir()}
    assert "throughput" not in left
    assert "mine" in left
    page = (folder / "report" / "report.html").read_text()
    assert all(f'id="{name}"' in page for name in left - {"mine"})


@pytest.mark.parametrize("room", [0, 3])
def test_on_a_full_disk_the_report_before_stays_as_it_was(paths, monkeypatch, room):
    """The disk is a STAND-IN's, which takes so many files."""
    folder = measurements.write(paths)
    call()

    def there():
        every = sorted((folder / "report").rglob("*"))
        return {path: path.is_file() and path.read_bytes() for path in every}

    before, left, write = there(), [None] * room, files.write

    def full(path, content, **options):
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left.pop()
        write(path, content, **options)

    # The next one has no figure of what rates make.
    for path in (folder / "points").glob("*rate-1G*.json"):
        path.unlink()
    with monkeypatch.context() as patched:
        patched.setattr(files, "write", full)
        with pytest.raises(PrerequisiteMissing, match="cannot be written: No space left"):
            call()
    assert there() == before
    call()
    after = there()
    assert {path.name for path in before.keys() - after.keys()} == {"ratio-rate.svg"}
    assert not after.keys() - before.keys()


@pytest.mark.parametrize("named", ["../points.csv", "figures/../../campaign.json", "/etc/hosts"])
def test_an_edited_report_removes_nothing_else(paths, named):
    folder = measurements.write(paths)
    call()
    path = folder / "report" / "report.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"figures": [named]}))
    with pytest.raises(UsageError, match="is no report of campaign"):
        call()
    assert (folder / "campaign.json").exists()


def test_files_of_others_are_never_written_over(paths, tmp_path):
    measurements.write(paths)
    measurements.write(paths, measurements.document("other", uuid="another"), [])
    out = tmp_path / "mine"
    out.mkdir()
    (out / "report.html").write_text("my thesis")
    with pytest.raises(UsageError, match="no report of campaign smoke"):
        call("smoke", "--out", str(out))
    assert (out / "report.html").read_text() == "my thesis"
    (out / "report.html").unlink()
    call("smoke", "--out", str(out))
    with pytest.raises(UsageError, match="no report of campaign other"):
        call("other", "--out", str(out))
