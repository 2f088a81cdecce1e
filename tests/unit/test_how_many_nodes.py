"""docs/how-to/how-many-nodes.md, typed as it is written."""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest
import yaml

from gpubed.campaigns.predictions import Foretold, write
from gpubed.jobs.runs import record
from support import measurements
from support.blocks import blocks
from support.cluster import BIN, ROOT, Cluster
from support.samples import granted_cluster

pytestmark = pytest.mark.process
PAGE = "docs/how-to/how-many-nodes.md"
ALONE, IN_PLAN, CAMPAIGN = blocks(PAGE)


def typed(command, root, *words):
    """Run a command of the page; what the page shows must be printed."""
    name, *rest = shlex.split(command.words)
    assert name == "gpubed"
    program = words or (str(BIN / "gpubed"),)
    done = subprocess.run(
        [*program, *rest],
        env={
            **os.environ,
            "GPUBED_ROOT": str(root),
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}",
        },
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert command.missing(done.stdout) == [], done.stdout
    return done.stdout


@pytest.mark.parametrize("command", ALONE.commands, ids=lambda command: command.words)
def test_without_a_cluster(command, tmp_path):
    said = typed(command, tmp_path)
    if "--page" in command.words:
        assert "<html" in (tmp_path / "nodes.html").read_text()
        assert "nodes.html" in said


def test_in_the_specification(tmp_path):
    experiment = yaml.safe_load(IN_PLAN.above)
    networks = {"experiment": {"rate": "10 Gbit/s"}}
    Cluster(tmp_path, "lab", configure=False, networks=networks, **experiment)
    [command] = IN_PLAN.commands
    assert "1,500 images/s at the least node-hours: " in typed(command, tmp_path)


@pytest.fixture
def lab(tmp_path):
    """A cluster that is up, with a campaign that was predicted 10 % too high. STAND-IN."""
    paths = granted_cluster(tmp_path)
    campaign = measurements.document()
    folder = measurements.write(paths, campaign)
    points = {}
    for path in (folder / "points").glob("*.0.json"):
        point = json.loads(path.read_text())
        rate = 1.1 * point["metrics"]["images_per_s"]
        points[point["id"]] = Foretold(
            images_per_s=rate, low=0.8 * rate, high=1.2 * rate, step_s=1.0
        )
    write(folder, points, record.now())
    return tmp_path


def test_before_a_campaign_and_after_it(lab):
    plan, report, history = CAMPAIGN.commands
    (lab / ".gpubed/lab/campaigns/smoke").rename(lab / "aside")
    said = typed(plan, lab, sys.executable, "-m", "support.stand_in_job")
    assert said.count("pending") == 4
    (lab / "aside").rename(lab / ".gpubed/lab/campaigns/smoke")
    assert re.search(r"what was measured by (9|10)\.\d% in the median", typed(report, lab))
    said = typed(history, lab)
    assert said.count("lab/smoke") == 12
    assert "interval has 100% of 12 points" in said
