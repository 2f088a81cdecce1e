"""Whether KVM runs machines here. A device file does not tell: some hosts only pretend."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

from docker.errors import ContainerError

from gpubed.backends.local import daemon
from gpubed.core import files, reading
from gpubed.core.paths import cache
from gpubed.core.reading import Unreadable

_KVM = Path("/dev/kvm")
_ONE_AT_A_TIME = threading.Lock()
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def has_kvm(image: str) -> bool:
    """Start the image's kernel under KVM once per boot of this machine, and remember."""
    if not _KVM.exists():
        return False
    known = cache() / "kvm"
    asked = f"{_BOOT_ID.read_text(encoding='utf-8').strip()} {image}"
    # Nodes are made at the same time, and a failing start takes long.
    with _ONE_AT_A_TIME:
        answer = ""
        with suppress(Unreadable):
            answer = reading.file(known, limit=4096).text()
        if not answer.startswith(asked):
            answer = f"{asked} {'works' if _starts(image) else 'fails'}"
            files.write(known, answer.encode())
    return answer.endswith("works")


def _starts(image: str) -> bool:
    try:
        daemon.client().containers.run(
            image,
            ["gpubed-machine", "probe"],
            devices=[str(_KVM)],
            network_mode="none",
            remove=True,
        )
    except ContainerError:
        return False
    return True
