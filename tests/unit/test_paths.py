"""Where gpubed keeps its files, and who may look there."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpubed import paths


def mode(folder: Path) -> int:
    return folder.stat().st_mode & 0o777


def test_nobody_else_gets_to_what_nodes_write(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Root of a node can leave a set-uid program there."""
    monkeypatch.delenv("GPUBED_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    former = tmp_path / "gpubed"
    former.mkdir(mode=0o755)
    assert mode(paths.private_cache()) == 0o700
    assert paths.private_cache() == former


def test_a_folder_that_the_user_names_keeps_its_mode(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    chosen = tmp_path / "chosen"
    monkeypatch.setenv("GPUBED_CACHE", str(chosen))
    assert mode(paths.private_cache()) == 0o700, "it is new"
    chosen.chmod(0o755)
    assert mode(paths.private_cache()) == 0o755
