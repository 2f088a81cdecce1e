"""Campaigns of which it is known what there is to find, and what a report finds there.

The figures come from `support.measurements`: a model of alpha and beta with a little noise.
"""

import itertools
import random

import pytest

from gpubed.core.paths import Project
from gpubed.report import analysis, read, summary
from support import measurements


@pytest.fixture
def analysed(tmp_path):
    """A function that analyses a campaign, of which so many points are left out."""

    def analyse(campaign=None, points=None, broken=0):
        campaign = campaign or measurements.document()
        cluster = Project(tmp_path).cluster("lab")
        measurements.write(cluster, campaign, points)
        measured = read.load(cluster, campaign["name"])
        assert len(measured.broken) == broken
        return analysis.analyse(measured)

    return analyse


def told(found):
    return " ".join(summary.told(found))


def noisy(seed, factors, repeat=3, sd=0.025, communication=0.0):
    """Return a campaign whose steps differ by chance, and by what its links cost, in seconds."""
    chance = random.Random(seed)
    campaign = measurements.document(f"c{seed}", factors=factors, repeat=repeat)
    points = []
    for values in itertools.product(*factors.values()):
        settings = dict(zip(factors, values, strict=True))
        for number in range(repeat):
            compute = chance.gauss(0.5, sd)
            exposed = communication if settings["nodes"] > 1 else 0.0
            found = {
                "step_s": compute + exposed,
                "compute_s": compute,
                "exposed_communication_s": exposed,
                "data_s": 0.0,
                "images_per_s": settings["nodes"] * 32 / (compute + exposed),
            }
            points.append(measurements.point(settings, number, found))
    return campaign, points


# Campaigns without a difference; 5 % of them, and luck.
ROUNDS, MOST = 20, 4
