"""Scenes, played by the embedded engine and by the CLI, and compared."""

import json
from collections import Counter
from pathlib import Path

import pytest
import yaml

from support.scenes import Scenes, by_cli, by_engine

SCENES = yaml.safe_load((Path(__file__).parent / "scenes.yaml").read_text())


@pytest.fixture
def scenes(tmp_path):
    return Scenes(tmp_path)


def pytest_generate_tests(metafunc):
    if "sequence" in metafunc.fixturenames:
        metafunc.parametrize("sequence", list(SCENES))


@pytest.fixture
def steps(sequence):
    return SCENES[sequence]


@pytest.fixture
def players():
    return {"engine": by_engine, "cli": by_cli}


@pytest.fixture
def differences():
    def compare(ours, theirs):
        """Returns what two accounts of a step disagree on, readable in a failure."""
        found = {}
        for key in ("ok", "changes"):
            if ours[key] != theirs[key]:
                found[key] = (ours[key], theirs[key])
        for key in ("calls", "state"):
            left, right = (Counter(map(_text, side[key])) for side in (ours, theirs))
            if left != right:
                found[key] = {"only ours": list(left - right), "only theirs": list(right - left)}
        return found

    return compare


def _text(item):
    return item if isinstance(item, str) else json.dumps(item, sort_keys=True)
