"""Leaves scratch to the owner of a host that leaves its cluster. Standard library only.

The data stays. The record notes that scratch belongs to no cluster any more, so that no cluster
removes it later, not even the same one.
"""

import json
import os
import subprocess
import sys
from pathlib import Path


def give_up(noted: Path) -> None:
    """Restore owner and mode of an owner's folder, then mark the record."""
    try:
        record = json.loads(noted.read_text())
        path, was = Path(record["path"]), record["was"]
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return  # none, or one that is not whole, which is refused as it is
    if record.get("given_up"):
        return
    words = ["findmnt", "--noheadings", "--mountpoint", str(path)]
    mounted = subprocess.run(words, capture_output=True, check=False).returncode == 0
    # Under a mounted file system, the mode would be set there.
    if was and path.is_dir() and not path.is_symlink() and not mounted:
        os.chown(path, was["owner"], was["group"])
        path.chmod(was["mode"])
    draft = noted.with_name(f"{noted.name}.draft")
    draft.write_text(json.dumps(record | {"given_up": True}, indent=4) + "\n")
    draft.replace(noted)


if __name__ == "__main__":
    give_up(Path(sys.argv[1]))
