"""The embedded engine does what the Pulumi CLI does, step by step.

The CLI's answers are recorded in `recorded.json`; where the CLI is on PATH they are
checked afresh, and both engines also take turns on one stack.
Record anew with `GPUBED_RECORD=1 pytest tests/stacks/test_parity.py -m live`.
"""

import json
import os
import shutil
from pathlib import Path

import pytest

RECORDED = Path(__file__).parent / "recorded.json"
needs_cli = pytest.mark.skipif(not shutil.which("pulumi"), reason="the Pulumi CLI is not on PATH")


def test_engine_agrees_with_the_recorded_cli(scenes, sequence, steps, players, differences):
    recorded = json.loads(RECORDED.read_text())[sequence]
    assert len(recorded) == len(steps)
    for number, (step, expected) in enumerate(zip(steps, recorded, strict=True)):
        played = scenes.play(step, players["engine"])
        assert not differences(played, expected), f"{sequence} {number}"


@pytest.mark.live
@needs_cli
def test_cli_still_answers_as_recorded(scenes, sequence, steps, players, differences):
    played = [scenes.play(step, players["cli"]) for step in steps]
    if os.environ.get("GPUBED_RECORD"):
        recorded = {**json.loads(RECORDED.read_text()), sequence: played}
        kept = (
            f"{json.dumps(name)}: [\n"
            + ",\n".join(json.dumps(step, ensure_ascii=False) for step in steps)
            for name, steps in recorded.items()
        )
        RECORDED.write_text("{\n" + "\n],\n".join(kept) + "\n]\n}\n")
    for account, expected in zip(played, json.loads(RECORDED.read_text())[sequence], strict=True):
        assert not differences(account, expected)


@pytest.mark.live
@needs_cli
def test_engines_take_turns_on_one_stack(scenes, sequence, steps, players, differences):
    recorded = json.loads(RECORDED.read_text())[sequence]
    for number, (step, expected) in enumerate(zip(steps, recorded, strict=True)):
        player = players["cli" if number % 2 else "engine"]
        assert not differences(scenes.play(step, player), expected), f"{sequence} {number}"
