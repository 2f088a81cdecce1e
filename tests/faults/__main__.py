"""Breaks a small cluster in every way of a list, and follows what is said to its end.

`python -m tests.faults [NAME...]` plays on two bare nodes of this machine and writes
docs/reference/faults.md. Exits with 1 when a fault was not repaired, a hint led nowhere,
or data was lost.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest does

from support.cluster import ROOT, Cluster, unique
from support.faults.play import Play, Played
from support.faults.ways import FAULTS

PAGE = ROOT / "docs/reference/faults.md"
BARE = {
    "nodes": [{"name": "node", "count": 2, "machine": {"cpus": 1, "memory": "512 MiB"}}],
    "configure": False,
}
HEAD = """# Faults: what is said, and what repairs it

`make test-nightly PARTS=faults` breaks a cluster of two bare nodes in each of these ways.
It asks `gpubed status`, then does what a user does: `gpubed up`, and after that only what was
printed as the way out. A result that was written to the shared storage before must be there
after. On nodes with roles, what a fault may have harmed is applied and verified again, which takes
up to three minutes longer. This page is written by that run.

| fault | `gpubed status` (exit) | `gpubed up` (exit, seconds) | repaired by | data |
| --- | --- | --- | --- | --- |
"""


def main() -> int:
    """Play the faults that are named, or all; the page is written when all are played."""
    wanted = [fault for fault in FAULTS if fault.name in sys.argv[1:] or not sys.argv[1:]]
    root = Path(tempfile.mkdtemp(prefix="gpubed-faults-"))
    play = Play(Cluster(root, unique("faults"), **BARE))
    played: list[Played] = []
    try:
        for fault in wanted:
            played.append(play.play(fault))
            print(played[-1].row, flush=True)
    finally:
        play.down()
    if not sys.argv[1:]:
        PAGE.write_text(HEAD + "".join(f"{one.row}\n" for one in played))
    return int(not all(one.right for one in played))


if __name__ == "__main__":
    sys.exit(main())
