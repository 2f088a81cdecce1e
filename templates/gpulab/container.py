"""Runs in the container of a GPULab job: unpacks the job, starts its ranks, hands results back.

Called as `python3 -c THIS SETTINGS BUNDLE`. A job's log is all that the service hands
out, so the small files of the run's folder go there, each line marked, counted and
summed up: a log with a gap is noticed. Nothing is read out of what the job prints.
Standard library only, and no syntax newer than Python 3.7: the image brings the interpreter.
"""

import base64
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any  # see above

LINE = 3000
GRACE_S = 8  # of the ten that a container gets between SIGTERM and SIGKILL


def main() -> None:
    """Run the job; the exit code is that of its launcher."""
    settings = json.loads(sys.argv[1])
    folder = Path(settings["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(sys.argv[2]))) as bundle:
        brought = bundle.getnames()
        filtered: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        bundle.extractall(str(folder), **filtered)  # noqa: S202  # what the controller packed
    words = settings["command"]
    try:
        process = subprocess.Popen(words, cwd=str(folder), start_new_session=True)
    except OSError as error:
        say(f"{words[0]}: {error.strerror}")
        code = 127
    else:
        code = follow(process)
    hand_back(folder, brought, settings, code)
    sys.exit(code)


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def follow(process: "subprocess.Popen[bytes]") -> int:
    """Wait for the ranks; who stops the container stops them, and they get time to write."""

    def stop(_number: int, _frame: Any) -> None:
        os.killpg(process.pid, signal.SIGTERM)
        signal.signal(signal.SIGALRM, lambda *_: os.killpg(process.pid, signal.SIGKILL))
        signal.alarm(GRACE_S)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, stop)
    code = process.wait()
    signal.alarm(0)
    return code if code >= 0 else 128 - code


def hand_back(folder: Path, brought: list[str], settings: dict[str, Any], code: int) -> None:
    """Print the files that fit, `metrics.json` first, then the smallest."""
    chosen, left = choose(folder, brought, settings["limit"])
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name in chosen:
            archive.add(str(folder / name), arcname=name)
    content = packed.getvalue()
    facts = {"exit_code": code, "left": left, "sha256": hashlib.sha256(content).hexdigest()}
    text = base64.b64encode(content).decode("ascii")
    lines = [text[i : i + LINE] for i in range(0, len(text), LINE)]
    lines.append(base64.b64encode(json.dumps(facts).encode()).decode("ascii"))
    for number, line in enumerate(lines, start=1):
        say(f"{settings['mark']}:{number}/{len(lines)}:{line}")


def choose(folder: Path, brought: list[str], limit: int) -> tuple[list[str], list[str]]:
    """Return the new files that fit into so many bytes, and those that do not."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in files}
    new = [name for name in sizes if name not in brought and "__pycache__" not in name]
    chosen: list[str] = []
    left: list[str] = []
    for name in sorted(new, key=lambda name: (name != "metrics.json", sizes[name])):
        fits = sizes[name] <= limit
        limit -= sizes[name] if fits else 0
        (chosen if fits else left).append(name)
    return chosen, left


if __name__ == "__main__":
    main()
