"""A disk that is full."""

from __future__ import annotations

from gpubed.chaos.scenario import Scenario
from gpubed.testbeds.breaker import Harm

# A node's disk is a part of this machine's, which nobody may fill. So a small file system with a
# copy of what is there takes the place of one folder, and that one is filled.
# What one that was killed has left goes first, lest another be put on top of it.
_FILL = """
{empty}
set -e
size=$(($(du --summarize -m /var/log | cut -f 1) + 32))
mount -t tmpfs -o size=${{size}}m gpubed-chaos /mnt
cp --archive /var/log/. /mnt
mount --move /mnt /var/log
dd if=/dev/zero of=/var/log/gpubed-chaos bs=1M 2>/dev/null || true
"""
_EMPTY = (
    "for at in /var/log /mnt; do "
    '! grep -q "^gpubed-chaos $at " /proc/mounts || umount --lazy $at; done'
)


class FillDisk(Scenario):
    """A log that grew until nothing else had room."""

    name = "fill-disk"
    does = (
        "/var/log is full: a small file system that takes its place meanwhile; "
        "what is logged until the end is lost"
    )
    seen_as = frozenset({"full"})
    by_itself = True

    def harm(self) -> Harm:
        """Fill a file system that is made for it."""
        fill = _FILL.format(empty=_EMPTY)
        return self.ground.breaker.scripted(self.node, fill, _EMPTY, mounts=True)
