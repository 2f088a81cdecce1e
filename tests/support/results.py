"""What tests that take long came to: kept in a file, with a digest of what was tested."""

import hashlib
import json
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Outcome:
    """What came of a test; `digest` tells what was tested."""

    passed: bool
    seconds: int
    digest: str

    def described(self, digest: str, *figures: str) -> str:
        """Say whether it passed, and figures; `digest` is of what is there now."""
        since = () if self.digest == digest else ("changed since",)
        return ", ".join(("passed" if self.passed else "failed", *figures, *since))


def digest(folders: Iterable[Path], without: Iterable[str] = ()) -> str:
    """Tell folders from what they were before; those of some names do not count."""
    found, ignored = hashlib.sha256(), {"__pycache__", *without}
    for file in sorted(file for folder in folders for file in folder.rglob("*")):
        if file.is_file() and not ignored & set(file.parts):
            found.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return found.hexdigest()[:12]


class Results:
    """All outcomes so far, by the test's name, kept in a file."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        self._kept = {name: Outcome(**outcome) for name, outcome in kept.items()}

    def of(self, test: object) -> Outcome | None:
        """Return what came of a test, or None where it never ended."""
        return self._kept.get(str(test))

    def keep(self, test: object, outcome: Outcome) -> None:
        """Remember an outcome, and write it down."""
        with self._lock:
            self._kept[str(test)] = outcome
            kept = {name: asdict(self._kept[name]) for name in sorted(self._kept)}
            self._path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
