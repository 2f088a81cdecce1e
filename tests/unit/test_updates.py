"""Lines that carriage returns rewrite, such as progress bars; lines that several ranks print."""

import io
import os
import sys

import pytest

from gpubed.jobs.rank_output import Updates
from gpubed.nodes import output
from support import terminal

# tqdm begins each update with a carriage return, and horovodrun ends a line there.
BAR = "[1]<stderr>:\r" + "\r".join(f"[1]<stderr>: {n}%|#| {n}/200" for n in range(200))


def settled(text):
    """What stays of a run's output."""
    stream = io.TextIOWrapper(io.BytesIO(text.encode()))
    updates = Updates()
    kept = [line for raw in output.lines(stream) if (line := updates.settle(raw)) is not None]
    return kept + updates.rest()


@pytest.mark.parametrize(
    ("text", "stays"),
    [
        (f"{BAR}\r[1]<stderr>:\n", ["[1]<stderr>: 199%|#| 199/200"]),
        ("[1]<stderr>:\r[1]<stderr>: 1%\r[1]<stderr>: 2%\n", ["[1]<stderr>: 2%"]),
        (  # of two ranks, and of the streams of one
            "[0]<stderr>:1%\r[1]<stderr>:5%\r[0]<stdout>:hello\n[0]<stderr>:2%\r[1]<stderr>:\n",
            ["[0]<stdout>:hello", "[1]<stderr>:5%", "[0]<stderr>:2%"],
        ),
        (
            "[1]<stderr>: 50%|# [0]<stderr>:KeyError\n",
            ["[1]<stderr>: 50%|# ", "[0]<stderr>:KeyError"],
        ),
        ("[0]<stdout>:see [1]<stdout>\n", ["[0]<stdout>:see [1]<stdout>"]),
        ("1%\r2%\r\nplain\r\n\n", ["2%", "plain", ""]),
    ],
)
def test_of_updates_the_last_state_stays(text, stays):
    assert settled(text) == stays


PRINT = """
import sys
from pathlib import Path
from gpubed.cli.job_output import JobOutput
from gpubed.cli.ui import UI
output = JobOutput(UI(), lambda text: print(f"live {text!r}"), Path("/nowhere"))
for line in sys.argv[1:]:
    output.tell(line.replace("CR", "\\r"))
output.ended_with(["x"])
"""
LINES = [
    *(f"[{rank}]<stdout>:epoch 1" for rank in (0, 2, 1, 5)),
    *("[0]<stdout>:loss 1", "[0]<stdout>:epoch 1", "[3]<stderr>: 7%CR"),
]


@pytest.mark.process
def test_a_terminal_shows_once_what_several_ranks_print():
    command = [sys.executable, "-c", PRINT, *LINES]
    shown = terminal.run(command, columns=80, cwd="/", env={**os.environ}, limit=60)
    told = [line.strip() for line in shown.text.splitlines() if line.strip()]
    assert told == [
        "live 'rank 3: 7%'",
        "ranks 0-2, 5: epoch 1",
        "rank 0: loss 1",
        "rank 0: epoch 1",
    ]
