"""`gpubed chaos` breaks bare nodes, and what must hold holds, as docs/how-to/chaos.md says."""

import subprocess
import time

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.docker, pytest.mark.faults]


def test_what_is_broken_on_purpose_is_whole_again(bare):
    bare.call("up")
    for scenario in ("freeze-node", "cut-experiment", "lossy-link"):
        told = bare.json("chaos", scenario, "--on", "node-1", "--for", "1s", "-y")
        assert (told["scenario"], told["node"], told["ok"]) == (scenario, "node-1", True), told
        assert all(one["ok"] for one in told["held"])
    refused = bare.call("chaos", "freze-node", "-y", rc=2)
    assert "did you mean 'freeze-node'?" in refused.stderr
    assert bare.json("status")["state"] == "ready"


def test_a_watch_repairs_what_was_left_broken(bare):
    bare.call("up")
    told = bare.json("chaos", "kill-node", "--only-break", "-y")
    assert told["by_hand"].startswith("docker start ")
    assert [bare.call("watch", "--once", rc=None).returncode for _ in range(2)] == [1, 0]
    assert bare.json("status")["state"] == "ready"


@pytest.mark.parametrize(
    ("scenario", "left"),
    [
        ("fill-disk", "grep --count '^gpubed-chaos ' /proc/mounts || true"),
        ("lossy-link", "sudo nft list tables | grep --count gpubed_chaos || true"),
    ],
)
def test_what_a_killed_chaos_left_is_undone_by_up(bare, scenario, left):
    bare.call("up")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    words = (scenario, "--on", "node-1", "--for", "1h", "-y")
    killed = bare.start("chaos", bare.name, *words, **quiet)
    try:
        deadline = time.monotonic() + 120
        while bare.node("node-1", left).strip() == "0":
            assert killed.poll() is None, "it ended"
            assert time.monotonic() < deadline
            time.sleep(0.2)
    finally:
        killed.kill()
        killed.wait()
    refused = bare.call("chaos", "freeze-node", "-y", rc=1).stderr
    assert "was killed" in refused
    assert f"gpubed up {bare.name}" in refused
    said = bare.call("up").stderr
    assert f"undone: what `gpubed chaos {scenario}` did to node-1" in said
    assert bare.node("node-1", left).strip() == "0"
    assert bare.json("status")["state"] == "ready"
    assert bare.json("chaos", "freeze-node", "--for", "1s", "-y")["ok"]
