"""One campaign on a GENI site at 1 and at 10 Gbit/s: links are what was asked for, so two requests.

Slivers are SSH servers of this process; no role has anything to do on them, and the job is a
STAND-IN that says what it was given.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from support import stand_in_job
from support.am import AmServer, Limits, Site
from support.am.doors import Doors
from support.cluster import Cluster
from support.wall import backend

pytestmark = pytest.mark.testbeds

GIGABIT = 10**9
CAMPAIGN = """schema: gpubed/campaign-file/1
job: digits
factors: {nodes: [2], rate: [RATE]}
repeat: 2
"""
# Why a point at a rate is refused where the links have the other one: 10G before it was ever
# declared, 1G when it is no more.
REFUSED = {
    "10G": "virtualwall holds its links to the declared 1G",
    "1G": "the experiment network: rate_bps was 1000000000 and is 10000000000",
}


@pytest.fixture
def server(tmp_path):
    with AmServer(tmp_path / "am", nodes=Doors(), site=Site(), limits=Limits(delete=0.1)) as made:
        yield made


@pytest.fixture
def wall(server, tmp_path):
    made = Cluster(
        tmp_path / "project",
        "wall-rates",
        backend=backend(server, server.user("alice", passphrase=None), shared_folder="/proj/p"),
        storage={"shared": {"provider": "volume"}},
        nodes=[{"name": "node", "count": 2}],
        networks={"experiment": {"rate": "1 Gbit/s"}},
        configure=False,
    )
    folder = made.root / "campaigns"
    folder.mkdir()
    for rate in ("1G", "10G"):
        (folder / f"at-{rate}.yml").write_text(CAMPAIGN.replace("RATE", rate))
    yield made
    made.call("down", "-y")


def up(wall, rate):
    """Make it as it is asked for, and say from then on that its nodes are configured."""
    wall.edit(lambda spec: spec.update(configure=False))
    wall.edit(lambda spec: spec["networks"]["experiment"].update(rate=rate))
    wall.json("up", "-y")  # another rate is another request: the slice is made anew
    wall.edit(lambda spec: spec.pop("configure"))


def bench(wall, campaign):
    return subprocess.run(
        [sys.executable, stand_in_job.__file__, "bench", wall.name, campaign, "--json"],
        env=wall.environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )


def held(server):
    """Return the rates that the site holds links to, in bit/s."""
    [made] = server.ledger.slices.values()
    return {rate for link in made.request.links.values() for rate in link.rates.values()}


def test_a_point_at_each_rate_is_measured_on_links_that_were_asked_for_so(server, wall):
    for rate, bps in (("1 Gbit/s", GIGABIT), ("10 Gbit/s", 10 * GIGABIT)):
        up(wall, rate)
        assert held(server) == {bps}
        own, other = ("1G", "10G") if bps == GIGABIT else ("10G", "1G")
        done = bench(wall, f"at-{own}")
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)["points"]
        assert [(p["status"], p["settings"]["rate"]) for p in told] == [("ok", own)] * 2
        assert {call["rate_bps"] for call in stand_in_job.calls(wall.root)[-2:]} == {bps}
        before = len(stand_in_job.calls(wall.root))
        refused = bench(wall, f"at-{other}")
        assert refused.returncode == 2
        assert REFUSED[other] in refused.stderr
        assert len(stand_in_job.calls(wall.root)) == before, "no point at a rate that is not there"
    begun = [wall.state / "campaigns" / f"at-{rate}" / "campaign.json" for rate in ("1G", "10G")]
    made = [json.loads(path.read_text())["made_with"]["the experiment network"] for path in begun]
    assert [json.loads(one)["rate_bps"] for one in made] == [GIGABIT, 10 * GIGABIT]
