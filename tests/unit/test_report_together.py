"""Campaigns of several clusters in one report, as docs/how-to/report.md has it."""

import json

import pytest

from gpubed.core.errors import UsageError
from gpubed.report import plots, summary, tables
from support import environments, measurements
from support.environments import gpulab, trials, wall

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


def test_growth_is_of_each_environment_by_its_own_links(analysed):
    found = analysed(*environments.every())
    assert found.scale == "nodes"
    assert {one.settings["environment"] for one in found.series} == {WALL, FAST}
    for one in found.series:
        rate = {WALL: "1G", FAST: "10G"}[one.settings["environment"]]
        true = measurements.efficiency(3, one.settings["batch_size"], rate)
        assert one.largest.efficiency.value == pytest.approx(true, rel=0.03)
    least = {one.series.settings["environment"]: one.least_s for one in found.limits}
    assert least[WALL] == pytest.approx(10 * least[FAST])


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


def test_shapes_of_gpulab_alone_are_over_ranks(analysed):
    found = analysed(gpulab("gl-world", 3), trials("gl-trials"))
    assert found.scale == "ranks"
    assert {one.largest.size for one in found.series} == {1, 3}
    assert found.comparisons == (), "ten times as many GPUs are no other environment"
    assert any("Throughput over ranks" in figure.title for figure in plots.drawn(found))


def test_what_is_missing_or_broken_or_failed_says_where(tmp_path):
    campaign, points = wall("vw1", "1G")
    other, others = wall("vw10", "10G", repeat=2)
    others[-1] |= {"status": "failed", "reason": "node-1 does not answer", "metrics": {}}
    folder, _ = environments.write(tmp_path, (campaign, points[3:]), (other, others))
    (folder / "points" / "broken.0.json").write_text("{")
    found = environments.analysed(tmp_path, (campaign, points[3:]), (other, others))
    assert found.missing == (f"{WALL}, batch 32, 1 node",)
    assert [one.file for one in found.measured.broken] == [f"{WALL}: broken.0.json"]
    [failed] = [table for table in tables.made(found) if table.title == "What failed"]
    assert FAST in failed.rows[0][0]
    assert failed.note == "To repeat them: gpubed bench vw10 imagenet-scaling --again-failed"


def with_settings(measured, **settings):
    measured[0]["campaign"]["settings"] |= settings
    return measured


def test_what_is_fixed_otherwise_is_a_setting_and_not_compared(analysed):
    found = analysed(
        with_settings(wall("vw1", "1G"), precision="fp32", steps=20),
        with_settings(wall("vw10", "10G"), precision="bf16", steps=20),
    )
    assert {group.settings.get("precision") for group in found.groups} == {"fp32", "bf16"}
    assert all("steps" not in group.settings for group in found.groups)
    assert found.comparisons == ()
    said = " ".join(summary.told(found))
    assert f"No point of {WALL} and {FAST} is compared" in said


def test_the_job_s_files_are_to_be_the_same(analysed):
    def of(cluster, files):
        return wall(cluster, "1G", made_with={"the job's files": files})

    text = "The job's files were not the same everywhere"
    assert text in " ".join(summary.told(analysed(of("vw1", "a" * 64), of("vw10", "b" * 64))))
    assert text not in " ".join(summary.told(analysed(of("a", "a" * 64), of("b", "a" * 64))))


def without(metric, measured):
    for point in measured[1]:
        point["metrics"].pop(metric, None)
    return measured


def test_a_figure_that_one_lacks_does_not_stand_for_points(analysed):
    """It would have made failures of all points there."""
    fast = wall("vw10", "10G")
    fast[0]["campaign"]["stop"] = {"metric": "loss", "relative_width": 0.5}
    found = analysed(without("loss", wall("vw1", "1G")), fast)
    assert (found.metric, found.throughput, found.failed) == ("images_per_s", "images_per_s", ())
    json.dumps(found.document(), allow_nan=False)


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
