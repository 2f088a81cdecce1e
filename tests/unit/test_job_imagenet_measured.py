"""What job imagenet measures: parts of a step, what a rank uses and sends, and who is slow."""

import pytest

from support.imagenet import CPU


@pytest.fixture
def clock(job, monkeypatch):
    """The job's module of clocks, and a function that lets time pass on the host."""
    timing = job("timing")
    now = [100.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def wait(seconds):
        now[0] += seconds

    return timing, wait


def test_the_parts_of_a_step_are_told_apart(clock):
    timing, wait = clock
    one = timing.Clock(CPU)
    wait(5)
    one.mark(timing.DATA)
    one.step()
    one.start()
    for data, compute, communication, apply in ((1, 4, 2, 1), (3, 4, 4, 1)):
        wait(data)
        one.mark(timing.DATA)
        wait(compute)
        one.mark(timing.COMPUTE)
        wait(communication)
        one.mark(timing.COMMUNICATION)
        wait(apply)
        one.mark(timing.COMPUTE)
        one.step()
    with one.paused():
        wait(1000)
    one.stop()
    found = timing.summary(one)
    assert (one.steps, found["step_s"], found["step_sd_s"]) == (2, 10, 2)
    assert (found["data_s"], found["compute_s"], found["exposed_communication_s"]) == (2, 5, 3)
    assert (found["data_sd_s"], found["compute_sd_s"]) == (1, 0)


def steps_of(clock, timing, wait, *seconds):
    for each in seconds:
        wait(each)
        clock.mark(timing.COMPUTE)
        clock.step()


def test_while_it_trains_the_steps_since_it_told_last_are_told(clock):
    timing, wait = clock
    one = timing.Clock(CPU)
    assert one.lately() == {}
    one.start()
    steps_of(one, timing, wait, 1, 3)
    assert one.lately() == {timing.DATA: 0, timing.COMPUTE: 2, timing.COMMUNICATION: 0}
    assert one.lately() == {}
    steps_of(one, timing, wait, 7)
    assert one.lately()[timing.COMPUTE] == 7
    one.stop()
    assert (one.steps, timing.summary(one)["compute_s"]) == (3, pytest.approx(11 / 3))


def test_where_ranks_wait_throughout_what_exceeds_one_alone_is_communication(job):
    timing = job("timing")
    found = timing.without_sharding({"step_s": 1.0, "data_s": 0.1, "compute_s": 0.9}, 0.6)
    assert (found["compute_s"], found["exposed_communication_s"]) == pytest.approx((0.6, 0.3))
    slow = timing.without_sharding({"step_s": 1.0, "data_s": 0.1, "compute_s": 0.9}, 2.0)
    assert (slow["compute_s"], slow["exposed_communication_s"]) == pytest.approx((0.9, 0.0))


# Traffic


@pytest.mark.parametrize(
    ("seconds", "slowest", "ratio"),
    [([1.0, 3.0], "rank 1 on node-1", 3), ([4.0, 1.0, 3.0], "rank 0 on node-0", 2),
     ([1.0, 2.0, 3.0, 6.0], "rank 3 on node-3", 3), ([1.0], "rank 0 on node-0", None)],
)  # fmt: skip
def test_a_rank_is_compared_with_the_others_and_named_in_words(job, seconds, slowest, ratio):
    ranks = [
        {"rank": number, "host": f"node-{number}", "compute_s": one}
        for number, one in enumerate(seconds)
    ]
    found = job("report")._stragglers(ranks)
    assert found == {"slowest_rank": slowest, "straggler_ratio": ratio}
