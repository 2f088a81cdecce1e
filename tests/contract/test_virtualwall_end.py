"""A controller that vanished for good: what becomes of its slice, and what is kept.

The site's nodes are real, and so is the way by which they learn of the end. A STAND-IN is what
role health and its timer would do: the test installs the program, and calls it.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpubed.backends.virtualwall.node import NodeDriver
from gpubed.backends.virtualwall.slice import SliceDriver
from gpubed.cluster import lease
from gpubed.core import secret
from gpubed.nodes.allocation import Allocation
from gpubed.nodes.cluster import Cluster
from gpubed.nodes.ssh import SSH
from support.am import AmServer, Limits, Site
from support.am.machines import Machines
from support.wall import NAME, Wall

pytestmark = [pytest.mark.testbeds, pytest.mark.docker]

FILES = Path(__file__).parents[2] / "roles/health/files"
# The shortest that a node may be told to stop before the end, and a little more.
LENT_S = 240.0
SHORT = Limits(sliver=LENT_S, slice=LENT_S, minimum=60, delete=0)
INSTALL = """
mkdir -p /etc/gpubed /var/lib/gpubed /usr/local/lib/gpubed
cp -r /tmp/files/gpubed_* /usr/local/lib/gpubed/
cp /tmp/files/gpubed-health /tmp/files/gpubed-lease /usr/local/bin/
chmod 755 /usr/local/bin/gpubed-health /usr/local/bin/gpubed-lease
cp /tmp/health.json /etc/gpubed/
"""
# A rank that keeps a checkpoint when it is asked to end, and what looks beside it.
RANK = """
mkdir -p /shared/checkpoints/train
printf '#!/bin/sh\\ntrap "" TERM\\nsleep 600\\n' > /tmp/gpubed-rank
chmod 755 /tmp/gpubed-rank
cat > /tmp/rank.sh << 'END'
trap 'echo step 12 > /shared/checkpoints/train/step-12.pt; exit 7' TERM
/tmp/gpubed-rank & while sleep 0.2; do :; done
END
export GPUBED_HEARTBEAT=/shared/runs/20300101-000000000-train/.heartbeat
setsid sh /tmp/rank.sh < /dev/null > /dev/null 2>&1 &
sleep 1
"""
EXPECTED = {"gpus": 0, "experiment_address": None, "shared_path": "", "units": [], "patience": 2}


@pytest.fixture
def there(tmp_path, monkeypatch):
    """A slice of one node, whose testbed mounts what outlives it."""
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        pytest.skip("no Docker daemon answers")
    site = Site()
    nodes = Machines(control="10.127.216.0/24", cpus=1.0, memory=512 << 20)
    monkeypatch.setenv("GPUBED_ROOT", "")
    with AmServer(tmp_path / "am", site=site, nodes=nodes, limits=SHORT) as server:
        wall = Wall(
            tmp_path / "project",
            server,
            server.user("alice", passphrase=None),
            backend={"poll": 0.5, "patience": 120, "shared_folder": "/proj/testproj"},
            nodes=[{"name": "node", "count": 1}],
            networks={"experiment": None},
            storage={"shared": {"provider": "volume"}},
            lease={"duration": LENT_S, "on_nodes": {"warning": 300, "stop": LENT_S}},
            configure=True,
        )
        yield SimpleNamespace(server=server, wall=wall, paths=wall.paths)


def come_up(there, lent_s=LENT_S):
    """Make the slice and its node; return its allocation."""
    key = secret.ensure_key(there.paths.private_key)
    wanted = {**there.wall.inputs, "public_key": key, "duration": lent_s}
    _, made = SliceDriver(there.paths).create(wanted)
    testbed = there.wall.plan.spec.backend.model_dump(mode="json", exclude_none=True)
    inputs = {"cluster": NAME, "uuid": there.wall.uuid, "name": "node-0", "testbed": testbed}
    folder = f"/proj/testproj/gpubed-{there.wall.uuid}"
    inputs |= {"granted": made["nodes"]["node-0"], "mtu": 1500}
    inputs |= {"shared": {"folder": folder, "path": "/shared"}}
    _, node = NodeDriver(there.paths).create(inputs)
    return Allocation.model_validate(
        {
            "cluster": NAME,
            "uuid": there.wall.uuid,
            "backend": "virtualwall",
            "nodes": [{"name": "node-0", "group": "node", "role": "head", **node}],
            "control": {"subnet": "10.127.216.0/24"},
        }
    )


def test_its_nodes_are_given_back_at_the_end_and_what_jobs_kept_is_there(there):
    granted = come_up(there)
    with SSH(granted.head, there.paths) as node:
        node.put(FILES, "/tmp/files")
        expected = {**EXPECTED, "cluster": granted.uuid, "min_free_gib": 0}
        node.write("/tmp/health.json", json.dumps(expected))
        node.run("sudo -n sh -c %s", INSTALL)
        node.run("sudo -n install -d -o alice /shared/checkpoints /shared/own")
        node.run("mkdir -p ~/results && echo on its own disk > ~/results/metrics.json")
        node.run("sh -c %s", RANK)
        lease.read(Cluster(there.paths, there.wall.plan, granted))
        lease.tell_nodes(Cluster(there.paths, there.wall.plan, granted))
        told = json.loads(node.run("sudo -n gpubed-lease status").stdout)
        assert 0 < told["left_s"] <= LENT_S
        # From here on nobody is there but the node and the testbed.
        node.run("sudo -n gpubed-lease look")
        deadline = time.monotonic() + 30
        kept = "cat /shared/checkpoints/train/step-12.pt"
        while (said := node.run(kept, check=False)).exit_code and time.monotonic() < deadline:
            time.sleep(0.5)
        assert said.stdout == "step 12\n"
        health = json.loads(node.run("sudo -n gpubed-health status", check=False).stdout)
        assert health["quarantine"]["reason"].startswith("its lease ends at ")
        assert health["quarantine"]["reason"].endswith(f"gpubed renew {NAME}")

    assert len(there.server.slivers()) == 1
    there.server.clock.advance(LENT_S)
    deadline = time.monotonic() + 60
    while there.server.slivers() and time.monotonic() < deadline:
        time.sleep(0.5)
    assert there.server.slivers() == []

    again = come_up(there, 10 * LENT_S)
    with SSH(again.head, there.paths) as node:
        assert node.run(kept).stdout == "step 12\n"
        assert node.run("ls ~/results", check=False).exit_code, "what was on its own disk is gone"
