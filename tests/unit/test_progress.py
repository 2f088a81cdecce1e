"""Events of a run reach whoever follows it."""

from gpubed.core import progress


def test_events_reach_whoever_follows(tmp_path, monkeypatch):
    path, seen = tmp_path / "events", []
    monkeypatch.setenv(progress.VARIABLE, str(path))
    with progress.Follower(path, seen.append):
        progress.emit("phase", phase="base", status="started")
        progress.emit("note", message="two\nlines")
    assert [event["what"] for event in seen] == ["phase", "note"]
    assert len(path.read_text().splitlines()) == 2


def test_without_a_listener_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.delenv(progress.VARIABLE, raising=False)
    progress.emit("note", message="x")
    assert list(tmp_path.iterdir()) == []
