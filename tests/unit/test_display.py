"""What a terminal shows of a run; what draws there and what is told do not wait for each other."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from gpubed.cli.display import Display
from gpubed.cli.ui import UI
from support import terminal

# Each frame is drawn under the terminal's lock, and each line said takes it too.
CROWDED = """
import threading, time
from pathlib import Path
from tempfile import mkdtemp
from gpubed.cli.display import Display
from gpubed.cli.ui import UI
path = Path(mkdtemp()) / "events"
path.touch()
display = Display(UI())
with display.following(path):
    display._live.refresh_per_second = 1000
    for number in range(400):
        event = {"what": "phase", "phase": f"p{number}", "seconds": 0.1}
        display.handle({**event, "status": "started"})
        display._live.refresh()
        display.handle({**event, "status": "done"})
print("came to its end")
"""


def test_a_frame_is_drawn_while_somebody_is_telling():
    """Who tells holds the display's lock and waits for the terminal's; who draws has that one."""
    display, drawn = Display(UI()), threading.Event()

    def mark(*_):
        drawing = threading.Thread(target=lambda: (display._bottom(), drawn.set()), daemon=True)
        drawing.start()
        assert drawn.wait(5), "the frame waits for the line, and the line for the frame"

    display._ui.mark = mark
    display.handle({"what": "phase", "phase": "base", "status": "started"})
    assert drawn.is_set()


@pytest.mark.process
def test_a_terminal_full_of_lines_comes_to_its_end():
    said = terminal.run(
        [sys.executable, "-c", CROWDED], columns=80, cwd="/", env={**os.environ}, limit=60
    )
    assert "came to its end" in said.text


def test_what_a_verification_looks_at_is_named_while_it_looks():
    """Links are measured for 20 seconds; what was shown was the check before them."""
    display = Display(UI())
    display._live = object()
    passed = {"what": "check", "id": "rdma.rate", "node": "node-0", "result": "pass"}
    for event in (passed, {"what": "checking", "subject": "network, links and collective"}):
        display.handle(event)
    shown = "verifying: network, links and collective (1 checked)"
    assert [text for text, _ in display._running.values()] == [shown]


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM])
def test_who_is_stuck_below_the_terminal_is_ended_all_the_same(number):
    """The words go past what draws: a thread that is stuck may hold its lock for ever."""
    program = """
import sys, threading, time
from gpubed.engines import interruption
class Held:
    def write(self, _): threading.Event().wait()
    flush = write
interruption._LIMIT_S = 1.0
interruption.handle(limited=True)
sys.stderr = Held()
try:
    print("ready", flush=True)
    time.sleep(60)
finally:
    threading.Event().wait()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        _, said = process.communicate(timeout=15)
    finally:
        process.kill()
    assert process.returncode == 128 + number
    assert "run the same command again" in said
