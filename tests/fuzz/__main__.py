"""Gives every reader documents that nobody should write: `make test-nightly PARTS=fuzz`.

Each runs in a process of its own, with limits on memory and on the processor time of
one document. What breaks a reader is kept in `corpus/<reader>/`, from where the unit
tests read it again. FUZZ_SECONDS is for each reader (600 at most), FUZZ names some.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # as pytest does

from hypothesis import HealthCheck, Phase, given, seed, settings  # noqa: E402

from support.mutations import mutants  # noqa: E402
from support.readers import READERS, Reader, check  # noqa: E402

CORPUS = HERE / "corpus"
LIMIT_S = min(600.0, float(os.environ.get("FUZZ_SECONDS", "60")))
DOCUMENT_S = 5
MEMORY = 1536 * 2**20
ROUND = 500


class Hang(Exception):
    """One document took too long."""


def main() -> int:
    """Run all readers, or the one that is named; returns the exit code."""
    if len(sys.argv) > 1:
        return one(next(reader for reader in READERS if reader.name == sys.argv[1]))
    names = os.environ.get("FUZZ", "").split() or [reader.name for reader in READERS]
    with ThreadPoolExecutor(int(os.environ.get("JOBS", "1"))) as pool:
        failed = [name for name, code in zip(names, pool.map(run, names), strict=True) if code]
    if failed:
        print(f"broken: {', '.join(failed)}; see {CORPUS}")
    return bool(failed)


def run(name: str) -> int:
    """Run a reader in a process of its own; a hang that no signal ends is ended."""
    command = [sys.executable, "-m", "tests.fuzz", name]
    try:
        done = subprocess.run(
            command, cwd=HERE.parents[1], timeout=LIMIT_S + 120, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired:
        print(f"{name:20} HANGS")
        return 1
    print(done.stdout.rstrip() or done.stderr.rstrip()[-2000:], flush=True)
    return done.returncode


def one(reader: Reader) -> int:
    """Give a reader documents until its time is over."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGVTALRM, hung)
    started, count, refused = time.monotonic(), 0, 0

    def attempt(document: bytes) -> None:
        nonlocal count, refused
        count += 1
        with tempfile.TemporaryDirectory() as folder:
            signal.setitimer(signal.ITIMER_VIRTUAL, DOCUMENT_S)
            try:
                refused += check(reader, document, Path(folder)) is not None
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    worst: list[bytes] = []

    def watched(document: bytes) -> None:
        try:
            attempt(document)
        except Exception:
            worst.append(document)  # the last one is the smallest that Hypothesis has found
            raise

    while time.monotonic() - started < LIMIT_S:
        trial = settings(
            max_examples=ROUND,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        )(given(mutants(reader.sample, reader.dump))(watched))
        try:
            seed(random.getrandbits(64))(trial)()
        except Exception:
            kept = keep(reader, worst[-1] if worst else b"")
            print(f"{reader.name:20} BROKEN by {kept}\n{traceback.format_exc()[-3000:]}")
            return 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{reader.name:20} {count:8} documents, {refused:8} refused, peak {peak:.0f} MiB")
    return 0


def hung(_number: int, _frame: object) -> None:
    raise Hang(f"more than {DOCUMENT_S} s of processor time for one document")


def keep(reader: Reader, document: bytes) -> Path:
    """Write down what broke a reader."""
    path = CORPUS / reader.name / hashlib.sha256(document).hexdigest()[:12]
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):
        path.write_bytes(document)
    return path


if __name__ == "__main__":
    sys.exit(main())
