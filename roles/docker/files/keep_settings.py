"""Keeps what Docker's settings were before gpubed wrote its own, once. Standard library only.

What is kept is the file itself, or a note that there was none: only on that note the hook, by
which gpubed leaves, deletes settings. Prints what it did; nothing where all is noted.
"""

import subprocess
import sys
from pathlib import Path


def there_were_none(settings: Path, hook: Path, note: str, stamp: Path) -> bool:
    """Return whether Docker had no settings before; a file that is there may be gpubed's.

    Args:
        settings: Docker's.
        hook: What gives them back. One that does not know the note is a former version's,
            which kept settings if there were any.
        note: Its path.
        stamp: Says that the role brought Docker. A former version's is empty: it kept nothing,
            and wrote what is there.
    """
    if not (settings.is_symlink() or settings.exists()):
        return True
    if stamp.exists() and not stamp.stat().st_size:
        return True
    return hook.exists() and note not in hook.read_text(errors="replace")


def keep(settings: Path, before: Path, note: Path, hook: Path, stamp: Path) -> str:
    """Keep the settings, or note that there were none; return what was done."""
    if before.is_symlink() or before.exists() or note.exists():
        return ""
    if there_were_none(settings, hook, str(note), stamp):
        note.touch()
        return f"noted in {note} that there were none"
    # As it is, also where it is a link; and never by half.
    half = before.with_name(f"{before.name}.new")
    half.unlink(missing_ok=True)
    subprocess.run(["cp", "--archive", "--no-target-directory", settings, half], check=True)
    half.replace(before)
    return f"kept {settings} as {before}"


if __name__ == "__main__":
    sys.stdout.write(keep(*map(Path, sys.argv[1:])))
