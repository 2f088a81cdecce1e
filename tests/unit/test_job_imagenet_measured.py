"""What job imagenet measures: parts of a step, what a rank uses and sends, and who is slow."""

import itertools
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from gpubed.jobs import job_progress
from support.imagenet import CPU, GPU, job

__all__ = ["job"]


# Timing


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


def test_one_step_has_no_spread(clock):
    timing, wait = clock
    one = timing.Clock(CPU)
    one.start()
    steps_of(one, timing, wait, 3)
    one.stop()
    found = timing.summary(one)
    spreads = {name for name in found if name.endswith("_sd_s")}
    assert (found["step_s"], len(spreads)) == (3, 4)
    assert {found[name] for name in spreads} == {None}


def test_on_a_gpu_it_is_the_gpus_own_time_that_counts(clock, monkeypatch):
    """The host is ahead of the GPU: what it waits for in a call is not what that call does."""
    timing, wait = clock
    done = [0.0]

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = done[0]

        def synchronize(self):
            pass

        def elapsed_time(self, later):
            return 1000 * (later.at - self.at)

    monkeypatch.setattr(timing.torch.cuda, "Event", Event)
    one = timing.Clock(GPU)
    one.start()
    for _ in range(200):
        for phase, seconds in ((timing.COMPUTE, 0.3), (timing.COMMUNICATION, 0.1)):
            done[0] += seconds
            one.mark(phase)
        one.step()
    wait(80)
    one.stop()
    found = timing.summary(one)
    assert one.steps == 200
    assert found["step_s"] == pytest.approx(0.4)
    assert found["compute_s"] == pytest.approx(0.3)
    assert found["exposed_communication_s"] == pytest.approx(0.1)


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


def test_what_a_gpu_has_not_done_yet_is_told_later(clock, monkeypatch):
    """To tell, nobody waits for it: `synchronize` would."""
    timing, _ = clock
    now, done = [0.0], [0.0]

    class Event:
        def __init__(self, enable_timing):
            pass

        def record(self):
            self.at = now[0]

        def query(self):
            return self.at <= done[0]

        def synchronize(self):
            assert self.query()

        def elapsed_time(self, later):
            return 1000 * (later.at - self.at)

    monkeypatch.setattr(timing.torch.cuda, "Event", Event)
    one = timing.Clock(GPU)
    one.start()
    for _ in range(3):
        now[0] += 2
        one.mark(timing.COMPUTE)
        one.step()
    assert one.lately() == {}
    done[0] = 4
    assert one.lately()[timing.COMPUTE] == pytest.approx(2)
    assert (one.steps, one.lately()) == (2, {})


@pytest.mark.parametrize(
    ("waits", "alone_s", "told"),
    [
        (False, None, ["data 1.0 ms", "compute 220.0 ms", "exposed communication 30.0 ms"]),
        (True, 0.2, ["data 1.0 ms", "compute 200.0 ms", "exposed communication 50.0 ms"]),
        (True, None, ["data 1.0 ms"]),
    ],
)
def test_the_line_of_progress_tells_the_parts_of_a_step(job, waits, alone_s, told):
    training = job("training")
    found = {"data": 0.001, "compute": 0.22, "exposed_communication": 0.03}
    one = SimpleNamespace(
        clock=SimpleNamespace(lately=lambda: found),
        averaging=SimpleNamespace(waits_throughout=waits),
        alone_s=alone_s,
    )
    assert training.Training._parts(one) == told
    found = {}
    assert training.Training._parts(one) == []


def test_where_ranks_wait_throughout_what_exceeds_one_alone_is_communication(job):
    timing = job("timing")
    found = timing.without_sharding({"step_s": 1.0, "data_s": 0.1, "compute_s": 0.9}, 0.6)
    assert (found["compute_s"], found["exposed_communication_s"]) == pytest.approx((0.6, 0.3))
    slow = timing.without_sharding({"step_s": 1.0, "data_s": 0.1, "compute_s": 0.9}, 2.0)
    assert (slow["compute_s"], slow["exposed_communication_s"]) == pytest.approx((0.9, 0.0))


def test_where_ranks_wait_throughout_nobody_knows_how_far_the_parts_spread(clock):
    """A phase that was timed beside the others' is no part of what is told: it spread by 4 s."""
    timing, wait = clock
    one = timing.Clock(CPU)
    one.start()
    steps_of(one, timing, wait, 2, 10)
    one.stop()
    found = timing.without_sharding(timing.summary(one), 1.5)
    assert (found["compute_s"], found["step_sd_s"], found["data_sd_s"]) == (1.5, 4, 0)
    assert (found["compute_sd_s"], found["exposed_communication_sd_s"]) == (None, None)


# What a rank uses

COUNTED = (
    (100.0, 10.0, 1000),  # starts
    (110.0, 15.0, 2000),  # pauses: 10 s, 5 s of processor, 1000 bytes
    (200.0, 105.0, 900_000),  # goes on after a validation that was busy
    (210.0, 110.0, 901_000),  # ends: the same again
)


@pytest.fixture
def usage(job, monkeypatch):
    """What a rank on a CPU uses; a STAND-IN counts seconds, processor time and bytes."""
    found = job("usage").Usage
    counted = iter(COUNTED)

    def now(_self):
        seconds, cpu, moved = next(counted)
        return seconds, cpu, (moved, moved)

    monkeypatch.setattr(found, "_now", now)
    return found(CPU)


def test_use_between_steps_is_not_that_of_steps(usage):
    usage.start()
    with usage.paused():
        pass
    told = usage.read()
    assert told["cpu_percent"] == pytest.approx(50)
    assert told["sent_bps"] == told["received_bps"] == pytest.approx(800)


def test_a_gpu_that_was_busy_for_less_than_a_second_is_looked_at_once(job, usage):
    usage._device = GPU
    job("usage").torch.cuda.utilization.return_value = 97
    job("usage").torch.cuda.max_memory_allocated.return_value = 1000
    usage.start()
    assert usage.read()["gpu_percent"] == 97


def test_before_it_looks_there_is_nothing_to_pause(usage):
    with usage.paused():
        pass
    usage.start()
    assert usage.read()["cpu_percent"] == pytest.approx(50)


def test_validation_and_checkpoints_pause_clock_and_use(job):
    training = job("training")
    paused = MagicMock()
    parts = {"clock": paused.clock, "usage": paused.usage, "keeper": MagicMock(), "stop": None}
    kept = SimpleNamespace(
        **parts,
        schedule=job("schedule").Schedule(
            images=1, images_per_step=1, epochs=1, steps=1, kept=None
        ),
        feed=MagicMock(),
        _scaler=MagicMock(),
        _validate=lambda _: 0.5,
        _check_loss=lambda: None,
    )
    kept._paused = lambda: training.Training._paused(kept)
    kept._at_length = lambda: training.Training._at_length(kept)
    training.Training._between(kept, 1)
    for part in (paused.clock, paused.usage):
        # Validation, and at the end the loss and the checkpoint.
        assert part.paused.call_count == 3


@pytest.mark.parametrize(("rank", "lines"), [(0, 3), (1, 0)])
def test_a_validation_says_how_far_it_is(job, capsys, monkeypatch, rank, lines):
    """Who is silent for two minutes is taken for stuck."""
    training, seconds = job("training"), itertools.count(step=2)
    monkeypatch.setattr(training, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    averaging = MagicMock(rank=rank, gather=lambda mine: [mine])
    found = averaging.network.eval.return_value.return_value.argmax.return_value
    found.__eq__ = lambda *_: SimpleNamespace(sum=lambda: 8)
    kept = SimpleNamespace(
        averaging=averaging,
        schedule=SimpleNamespace(total=500),
        _told_step=100,
        _autocast=MagicMock(),
    )
    batches = [("images", range(32))] * 3
    validate = training.torch.no_grad.return_value.call_args.args[0]
    assert validate(kept, SimpleNamespace(validation=lambda: batches)) == 0.25
    said = capsys.readouterr().out.splitlines()
    assert len(said) == lines
    assert all(job_progress.read(line)[:3] == (100, 500, "steps") for line in said)


# Traffic


@pytest.mark.parametrize(
    ("framework", "options", "bytes_per_weight"),
    [
        ("DDP", {}, 4 + 4),
        ("DDP", {"compression": True}, 2 + 2),
        ("DDP", {"passes": 3}, 4 + 4),
        ("FSDP", {}, 4 + 4 + 4),
        ("FSDP", {"compression": True}, 4 + 4 + 2),
        ("FSDP", {"passes": 3}, 3 * (4 + 4) + 4),
    ],
)
def test_sharded_ranks_send_weights_as_well_and_not_compressed(
    job, framework, options, bytes_per_weight
):
    averaging = job("averaging")
    kind = getattr(job("torch_averaging"), framework)
    rank = object.__new__(kind)
    rank.options, rank.size = averaging.Options(**options), 4
    assert rank.sent_bytes_per_step(1000) == 3 / 4 * 1000 * bytes_per_weight
    assert rank.gradient_width == (2 if options.get("compression") else 4)
    rank.size = 1
    assert rank.sent_bytes_per_step(1000) == 0


# Stragglers


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


@pytest.mark.parametrize(
    ("ranks", "went_by", "interface"),
    [(2, "TCP", "eth1"), (2, "NET/Socket", "eth1"), (2, "NET/IB/GDRDMA", None), (1, "TCP", None)],
)
def test_an_interface_is_named_that_carried_something(job, monkeypatch, ranks, went_by, interface):
    monkeypatch.setenv("HOROVOD_GLOO_IFACE", "eth1")
    assert job("report")._interface(ranks, went_by) == interface
