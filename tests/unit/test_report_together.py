"""Campaigns of several clusters in one report, as docs/how-to/report.md has it."""

import pytest

from gpubed.core.errors import UsageError
from gpubed.report import summary, tables
from support import environments, measurements
from support.environments import wall

WALL, FAST, WORLD, TRIALS = environments.LABELS


@pytest.fixture
def analysed(tmp_path):
    """A function that analyses campaigns of several clusters together."""

    def analyse(*measured):
        return environments.analysed(tmp_path, *measured)

    return analyse


@pytest.fixture
def put(tmp_path):
    """A function that puts campaigns together."""

    def put(*measured):
        return environments.put(tmp_path, *measured)

    return put


def compared(found):
    """Return the comparisons of environments: what with what, where."""
    return {
        (one.value, one.against, *one.group.others("environment").items()): one
        for one in found.comparisons
        if one.factor == "environment"
    }


def throughput(nodes, batch, rate):
    return nodes * batch * measurements.efficiency(nodes, batch, rate)


def test_each_environment_is_compared_with_the_first_where_all_else_is_equal(analysed):
    found = compared(analysed(*environments.every()))
    batches, nodes = (32, 64), (1, 2, 3)
    assert set(found) == {
        *((FAST, WALL, ("batch_size", b), ("nodes", n)) for b in batches for n in nodes),
        *((WORLD, WALL, ("batch_size", b), ("ranks", 3)) for b in batches),
        *((TRIALS, WALL, ("batch_size", b), ("ranks", 1)) for b in batches),
    }
    for (value, _, (_, batch), (_, size)), one in found.items():
        rate = "10G" if value != WALL else "1G"
        true = throughput(size, batch, rate) / throughput(size, batch, "1G")
        assert one.ratio.value == pytest.approx(true, rel=0.03)
        assert one.ratio.low < one.ratio.value < one.ratio.high


def test_what_differs_by_more_than_chance_is_told_in_words(analysed):
    text = " ".join(summary.told(analysed(*environments.every())))
    assert "clusters vw1 (virtualwall, 3 nodes), vw10 (virtualwall, 3 nodes), gl-world (" in text
    assert f"{FAST} over {WALL}: 1." in text
    assert "times the throughput with batch 32, 3 nodes" in text


def test_every_point_is_in_the_table_also_without_nodes(analysed):
    found = analysed(*environments.every())
    assert len(found.groups) == len({group.id for group in found.groups}) == 16
    results = tables.made(found)[0]
    rows = [dict(zip(results.columns, row, strict=True)) for row in results.rows]
    assert list(dict.fromkeys(row["environment"] for row in rows)) == environments.LABELS
    told = {
        tuple(row[name] for name in ("environment", "batch size", "nodes", "ranks")) for row in rows
    }
    assert {(WALL, "32", "3", ""), (WORLD, "32", "", "3"), (TRIALS, "64", "", "1")} <= told


def without(metric, measured):
    for point in measured[1]:
        point["metrics"].pop(metric, None)
    return measured


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (wall("vw10", "1G", job="digits"), "of several jobs .*vw1 .*: imagenet; vw10 .*: digits"),
        (wall("vw10", "1G", simulated=True), "simulated GPUs and others make no ratio"),
        (
            without("images_per_s", wall("vw10", "1G")),
            r"no rate or other figure in common \(vw1 .*: images_per_s; vw10 .*: step_s",
        ),
        (wall("vw1", "1G"), "campaign imagenet-scaling of cluster vw1 is there twice"),
    ],
)
def test_what_does_not_belong_together_is_refused(put, other, why):
    with pytest.raises(UsageError, match=why):
        put(wall("vw1", "1G"), other)
