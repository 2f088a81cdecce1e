"""What is on a host, as molecule's `node_state.py` has it, and in which it differs later."""

import json
import runpy
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / ".config/molecule/node_state.py"


def state(run):
    """Return what is on a host; `run` is a function that runs a program of Python there."""
    program = PROGRAM.read_text().split("def main")[0]
    return json.loads(run(f"{program}\nprint(json.dumps(state()))"))


def differences(before, after, *, data=()):
    """Return lines of what is otherwise, apart from folders of data."""
    module = runpy.run_path(str(PROGRAM))
    found = module["differences"].__globals__
    found["not_purged"] = set  # packages are purged
    lines = module["differences"](before, after)
    own = ("/var/lib/gpubed", "/etc/gpubed", *data)
    return [line for line in lines if not any(f": {path}" in line for path in own)]
