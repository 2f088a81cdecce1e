"""Compares what users see with what is kept here: `python -m tests.golden [--write] [PART…]`.

A part is `errors`, which needs no cluster, or a specification; without one, all. Each
specification goes through the states of `support.golden.STATES`, each with its verbs.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # as pytest does

from support import golden  # noqa: E402


def main() -> int:
    """Compare or write; 1 where something differs."""
    words = [word for word in sys.argv[1:] if word != "--write"]
    differ = False
    for part in words or ["errors", *golden.SPECS]:
        with tempfile.TemporaryDirectory(prefix="golden-") as folder:
            root = Path(folder)
            found = golden.errors(root).items() if part == "errors" else golden.recorded(part, root)
            for name, text in found:
                if "--write" in sys.argv:
                    golden.write(name, text)
                elif lines := golden.differences(name, text):
                    differ = True
                    print("\n".join(lines), flush=True)
    return int(differ)


if __name__ == "__main__":
    sys.exit(main())
