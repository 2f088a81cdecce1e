"""What is kept of a campaign: whole files, written once, and never lost."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpubed.campaigns.records import Folder, Record


def record(**changes):
    content = {
        "id": "nodes-1",
        "repetition": 0,
        "status": "ok",
        "settings": {"nodes": 1},
        "run_id": "x-digits",
        "run_dir": "/x-digits",
        "started": "2026-01-01T00:00:00+00:00",
        "seconds": 1.5,
        "metrics": {"images_per_s": 3.0},
    }
    return Record.model_validate({"schema": "gpubed/point/1", **content, **changes})


@pytest.fixture
def folder(tmp_path):
    found = Folder(tmp_path / "mine")
    found.begin(
        {
            "schema": "gpubed/campaign/1",
            "name": "mine",
            "factors": {"nodes": [1]},
            "started": "2026-01-01T00:00:00Z",
        }
    )
    return found


def test_what_was_kept_is_found_again_under_the_pinned_name(folder):
    folder.keep(record())
    path = folder.path / "points" / "nodes-1.0.json"
    assert json.loads(path.read_text()) == {
        "schema": "gpubed/point/1",
        "id": "nodes-1",
        "repetition": 0,
        "status": "ok",
        "reason": "",
        "settings": {"nodes": 1},
        "run_id": "x-digits",
        "run_dir": "/x-digits",
        "started": "2026-01-01T00:00:00+00:00",
        "seconds": 1.5,
        "metrics": {"images_per_s": 3.0},
        "image": "",
        "links": [],
        "devices": [],
    }
    assert folder.ended(folder.begun()) == ({("nodes-1", 0): record()}, {})


def test_what_was_kept_is_there_after_a_power_cut(tmp_path, monkeypatch):
    """Content and name are on the disk before anybody builds on them."""
    synced, real = [], os.fsync

    def fsync(descriptor):
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    begun = Folder(tmp_path / "campaigns" / "mine")
    begun.begin({"schema": "gpubed/campaign/1"})
    assert {str(tmp_path), str(tmp_path / "campaigns"), str(begun.path)} <= set(synced)
    assert any(name.startswith(f"{begun.path}/.campaign.json") for name in synced)
    synced.clear()
    begun.keep(record())
    draft, points = synced
    assert draft.startswith(f"{begun.path}/points/.nodes-1.0.json")
    assert points == f"{begun.path}/points"


def test_a_folder_that_is_put_aside_keeps_all_that_it_has(folder):
    folder.keep(record())
    aside = folder.put_aside(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    assert aside.name == "mine.20260102-030405"
    assert len(list((aside / "points").iterdir())) == 1
    assert folder.begun() is None
    assert folder.put_aside(datetime.now(UTC)) is None
