"""Answers about a training before nodes are booked, by the real predictor."""

import pytest

from gpubed.core.errors import UsageError
from gpubed.prediction.model import Setup, predict
from gpubed.prediction.questions import Questions

SETUP = Setup("resnet50", "v100", nodes=4, gpus_per_node=1, batch=32, link_bps=1e9)
ASKED = Questions(SETUP)


def test_the_nodes_that_reach_a_target_are_the_fewest_and_the_link_costs_least():
    answer = ASKED.reach(2000)
    for row in answer.rows:
        assert row.rate >= 2000
        setup = row.setup
        fewer = ASKED.row(nodes=setup.nodes - 1, link_bps=setup.link_bps)
        assert fewer.rate < 2000
    assert answer.best.node_hours == min(row.node_hours for row in answer.rows)
    assert f"{answer.best.setup.nodes} nodes with" in answer.words
    assert "1 Gbit/s" not in answer.words.replace("1 Gbit/s,", ""), "it never reaches the target"


def test_a_target_that_no_number_of_nodes_reaches_is_said_with_the_most_that_they_do():
    answer = ASKED.reach(2000, [1e9])
    assert answer.words.startswith("No number of nodes up to 64 reaches 2,000 images/s")
    assert answer.best.rate < 2000
    assert "links of 10 Gbit/s" in answer.changes


def test_a_faster_link_is_worth_as_much_as_the_rate_that_it_gives():
    answer = ASKED.compare_links([10e9, 1e9])
    slow, fast = answer.rows
    gain = fast.rate / slow.rate
    assert f"10 Gbit/s over 1 Gbit/s on 4 nodes: {gain:.2f} times" in answer.words
    assert "worth it while nodes cost less" in answer.words


def test_a_faster_link_is_not_worth_it_where_the_slow_one_hides_communication():
    slow_gpu = Questions(Setup("resnet50", "k80", 2, 1, 64, 25e9))
    assert "not worth it" in slow_gpu.compare_links([25e9, 100e9]).words


def test_the_smallest_batch_that_hides_communication_leaves_five_percent_of_it():
    answer = Questions(Setup("resnet50", "v100", 4, 1, 32, 25e9)).hide()

    def share(row):
        parts = row.prediction.parts
        return (parts["exposed_communication"] + parts["latency"]) / row.prediction.step_s

    assert share(answer.best) <= 0.05
    assert all(
        share(row) > 0.05 for row in answer.rows if row.setup.batch < answer.best.setup.batch
    )
    assert answer.words.startswith(f"Batch {answer.best.setup.batch} hides communication")


def test_hours_are_images_over_the_rate_and_their_bounds_those_of_the_interval():
    answer = Questions(SETUP, epochs=10, dataset_size=360_000).cost()
    found = predict(SETUP)
    assert answer.best.hours == pytest.approx(1000 / found.images_per_s)
    assert answer.best.node_hours == pytest.approx(4000 / found.images_per_s)
    assert f"{1000 / found.high:.3g} to {1000 / found.low:.3g} h" in answer.sure
    assert "on 2 nodes" in answer.words, "half of them, which take fewer node-hours"


def test_one_node_that_is_faster_than_several_is_named():
    assert "One node alone (" in ASKED.cost().words
    assert "is faster than 4 nodes with 1 Gbit/s." in ASKED.compare_links([1e9, 100e9]).words
    assert "alone" not in Questions(Setup("resnet50", "v100", 4, 1, 64, 100e9)).cost().words


def test_links_that_never_reach_a_target_are_named():
    never = "With 1 Gbit/s, no number of nodes up to 64 reaches it."
    assert never in ASKED.reach(3000, [1e9, 100e9]).words
    assert "no number of nodes" not in ASKED.reach(3000, [100e9]).words
    assert "no number of nodes" not in ASKED.reach(10, [1e9, 100e9]).words, "one node does"


def test_a_larger_batch_is_proposed_only_where_it_fits():
    asked = Questions(Setup("vit_l_16", "v100", 4, 1, 64, 10e9))
    assert "batch 128" in asked.fit(80e9, "sgd").changes
    assert "batch 128" not in asked.fit(16e9, "sgd").changes


def test_what_dominates_and_what_would_change_it_is_named():
    answer = ASKED.cost()
    assert answer.dominates.startswith("communication that computation does not hide, ")
    assert answer.changes.startswith("links of 10 Gbit/s")
    alone = Questions(Setup("resnet50", "v100", 1, 1, 32, 1e9)).cost()
    assert alone.dominates == "compute"
    assert "Gbit/s" not in alone.changes


@pytest.mark.parametrize(
    ("setup", "why"),
    [
        (Setup("resnet50", "q9", 1, 1, 32, 1e9), "no GPU 'q9'"),
        (Setup("resnot50", "v100", 1, 1, 32, 1e9), "resnet50"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_the_reason(setup, why):
    with pytest.raises(UsageError, match=why):
        Questions(setup).cost()
