"""The page on first GPU clusters quotes what gpubed says, and names what doctor finds."""

import re
from pathlib import Path

from gpubed.hardware import host
from gpubed.hardware.host import GpuHost

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "first-gpu-cluster.md").read_text()


def test_doctor_finds_what_the_page_lists():
    seen = GpuHost.model_validate({"schema": "gpubed/gpu-host/1", "kernel": "6.1"})
    found = {finding.id.rpartition(".")[2] for finding in host.findings("node-0", seen, 1)}
    table = PAGE.split("| what | why it matters |")[1].split("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines()[2:]]
    assert found == {name for row in rows for name in re.findall(r"`(\w+)`", row)}
