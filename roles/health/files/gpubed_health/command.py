"""Runs programs that may hang."""

import subprocess

TIMEOUT_S = 20
HANGS = 124
ABSENT = 127


def run(*command: str) -> tuple[int, str]:
    """Return a program's exit code and output; a program that hangs has failed."""
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
    except FileNotFoundError:
        return ABSENT, f"{command[0]} is not installed"
    try:
        said, _ = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        # Without waiting: a process that hangs in a driver cannot be killed.
        process.kill()
        return HANGS, f"no answer in {TIMEOUT_S} s"
    return process.returncode, said.strip()
