"""The real Pulumi CLI on a cluster: alone, and in turns with the embedded engine."""

import json
import shutil
import subprocess

import pytest

from support.cluster import BIN, labelled

pytestmark = [
    pytest.mark.live,
    pytest.mark.docker,
    pytest.mark.skipif(not shutil.which("pulumi"), reason="the Pulumi CLI is not on PATH"),
]


def pulumi(cluster, words):
    """Run plain `pulumi` the way the documentation says."""
    done = subprocess.run(
        ["bash", "-ec", f'eval "$({BIN}/gpubed env {cluster.name})"; pulumi {words}'],
        cwd=cluster.root,
        env=cluster.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def operations(preview):
    """Return what `pulumi preview --json` would do, but for leaving things as they are."""
    return {step["op"] for step in json.loads(preview)["steps"]} - {"same"}


def test_plain_pulumi_previews_makes_and_destroys_a_cluster_but_its_data(bare):
    assert operations(pulumi(bare, f"preview --json -s {bare.name}")) == {"create"}
    assert labelled(bare.name) == []
    pulumi(bare, f"up --yes --skip-preview -s {bare.name}")
    assert [node["state"] for node in bare.json("status")["nodes"]] == ["ready"] * 2
    assert bare.json("plan")["changes"] == []
    pulumi(bare, f"destroy --yes --skip-preview -s {bare.name}")
    [left] = labelled(bare.name)
    assert left.startswith("volume "), "data goes with gpubed down, which asks"
    assert left.split()[1] in bare.call("audit", rc=None).stdout
    bare.call("down", "-y")
    assert labelled(bare.name) == []


def test_both_engines_take_turns_on_one_cluster(bare):
    for turn in range(10):
        engine = ("embedded", "cli")[turn % 2]
        other = ("cli", "embedded")[turn % 2]
        bare.edit(
            lambda spec, turn=turn: spec["networks"]["experiment"].update(
                rate=f"{100 + turn} Mbit/s"
            )
        )
        bare.call("up", "--engine", engine)
        assert bare.json("plan", "--engine", other)["changes"] == []
    removal = bare.json("down", "-y", "--engine", "cli")
    assert removal["survivors"] == []
    assert labelled(bare.name) == []
