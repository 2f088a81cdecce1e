"""`gpubed chaos` breaks bare nodes, and what must hold holds, as docs/how-to/chaos.md says."""

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
