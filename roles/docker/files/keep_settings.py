"""Keeps what Docker's settings were before gpubed wrote its own, once. Standard library only.

What is kept is the file itself, or a note that there was none: only on that note the hook, by
which gpubed leaves, deletes settings. Prints what it did; nothing where all is noted.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

# What the role has always set to the same.
_CONSTANT = ("live-restore", "log-driver", "features")


def is_ours(text: str, wanted: dict[str, Any]) -> bool:
    """Return whether settings are what the role writes, in this version or a former one."""
    try:
        found = json.loads(text)
    except ValueError:
        return False
    if not isinstance(found, dict) or found.keys() != wanted.keys():
        return False
    return all(found.get(key) == wanted.get(key) for key in _CONSTANT)


def oldest_backup(settings: Path) -> Path | None:
    """Return what Ansible kept first: its copies are named NAME.PID.DATE~."""
    copies = settings.parent.glob(f"{settings.name}.*~")
    return min(copies, key=lambda path: path.name.rpartition(".")[2], default=None)


def original(settings: Path, hook: Path, note: str, wanted: dict[str, Any]) -> Path | None:
    """Return the file that holds the settings as they were before; None where there were none.

    Args:
        settings: Docker's.
        hook: What gives them back. One that does not know the note is a former version's,
            which kept settings if there were any.
        note: Its path.
        wanted: What the role is about to write.
    """
    if not (settings.is_symlink() or settings.exists()):
        return None
    if hook.exists() and note not in hook.read_text(errors="replace"):
        return None
    if settings.is_symlink() or not is_ours(settings.read_text(errors="replace"), wanted):
        return settings
    first = oldest_backup(settings)
    if first is None or is_ours(first.read_text(errors="replace"), wanted):
        return None
    return first


def keep(settings: Path, before: Path, note: Path, hook: Path, wanted: dict[str, Any]) -> str:
    """Keep the settings, or note that there were none; return what was done."""
    if before.is_symlink() or before.exists() or note.exists():
        return ""
    kept = original(settings, hook, str(note), wanted)
    if kept is None:
        note.touch()
        return f"noted in {note} that there were none"
    # As it is, also where it is a link; and never by half.
    half = before.with_name(f"{before.name}.new")
    half.unlink(missing_ok=True)
    subprocess.run(["cp", "--archive", "--no-target-directory", kept, half], check=True)
    half.replace(before)
    return f"kept {kept} as {before}"


if __name__ == "__main__":
    *places, settings_wanted = sys.argv[1:]
    sys.stdout.write(keep(*map(Path, places), json.loads(settings_wanted)))
