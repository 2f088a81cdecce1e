"""Which images of an epoch the ranks of job imagenet take, also where others go on with it."""

import itertools

import pytest

from support import prepared

IMAGES, BATCH = 40, 2


def with_indexes(folder, monkeypatch):
    prepared.Prepare(monkeypatch)(folder)


def loose(folder, _):
    for number in range(IMAGES):
        path = folder / "abc"[number % 3] / f"{number:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"image {number}".encode())


@pytest.fixture(params=[with_indexes, loose])
def source(request, job, tmp_path, monkeypatch):
    """A dataset that is read at any place."""
    request.param(tmp_path / "small", monkeypatch)
    return job("data").load(tmp_path / "small")


def number_of(item):
    _, read, label = item
    found = int(read().split()[1])
    assert label == found % 3
    return found


class Trained:
    """What the ranks of a training were dealt, from one set of ranks to the next."""

    def __init__(self, job, source, epochs=None, steps=1000):
        self.job, self.source, self.epochs, self.steps = job, source, epochs, steps
        self.kept, self.seen = None, {}

    def plan(self, ranks):
        per_step = ranks * BATCH
        return self.job("schedule").Schedule(IMAGES, per_step, self.epochs, self.steps, self.kept)

    def run(self, ranks, steps):
        """Let so many ranks make so many steps, and keep a checkpoint."""
        plan = self.plan(ranks)
        left = steps
        for epoch, had, of_epoch in plan.epochs():
            count = min(left, of_epoch)
            for rank in range(ranks):
                deal = self.job("data").Deal(rank, ranks, BATCH, had)
                items = itertools.islice(self.source.dealt(f"1 {epoch}", deal), count * BATCH)
                self.seen.setdefault(epoch, []).extend(number_of(item) for _, item in items)
            left -= count
            if not left:
                break
        self.kept = plan.place(plan.start + steps)
        return plan


@pytest.mark.parametrize("before", [1, 2, 3, 5])
@pytest.mark.parametrize("after", [1, 2, 3, 4, 7])
def test_on_any_ranks_an_epoch_goes_on_with_what_it_has_not_had(job, source, before, after):
    """Nothing twice, and what is left out is less than a step, as in any epoch."""
    training = Trained(job, source)
    training.run(before, 3)
    epoch, _, left = next(training.plan(after).epochs())
    training.run(after, left + 1 if epoch == 0 else 1)
    first = training.seen[0]
    assert len(first) == len(set(first)) > IMAGES - after * BATCH
    assert training.kept["images"] == len(first) + after * BATCH
    assert (training.kept["epoch"], training.kept["of_epoch"]) == (1, after * BATCH)


def test_through_many_changes_each_epoch_has_each_image_once(job, source):
    training = Trained(job, source)
    for ranks, steps in [(3, 4), (2, 5), (4, 1), (1, 9), (3, 5), (2, 20), (5, 3)]:
        training.run(ranks, steps)
    for epoch in range(training.kept["epoch"]):
        assert len(training.seen[epoch]) == len(set(training.seen[epoch])) > IMAGES - 5 * BATCH
    assert sum(map(len, training.seen.values())) == training.kept["images"]


def test_the_same_ranks_go_on_as_if_nothing_had_been(job, source):
    """Each rank with what it would have had, in the same order."""

    def of_a_rank(after, count):
        deal = job("data").Deal(1, 3, BATCH, after)
        return [
            (place, number_of(item))
            for place, item in itertools.islice(source.dealt("1 0", deal), count)
        ]

    whole = of_a_rank(0, 12)
    assert of_a_rank(2 * 3 * BATCH, 8) == whole[4:]


def test_each_epoch_has_an_order_of_its_own_and_the_same_each_time(job, source):
    def order(of):
        deal = job("data").Deal(0, 1, BATCH)
        return [number_of(item) for _, item in itertools.islice(source.dealt(of, deal), IMAGES)]

    assert order("1 0") == order("1 0") != order("1 1") != order("2 1")


@pytest.mark.parametrize(
    ("kept", "per_step", "start", "first"),
    [
        (None, 8, 0, (0, 0, 5)),
        ({"images": 56, "epoch": 1, "of_epoch": 16}, 8, 7, (1, 16, 3)),
        ({"images": 56}, 8, 7, (1, 16, 3)),  # of a former version
        # On three ranks instead of four: four steps of six are left of 24 images.
        ({"images": 56, "epoch": 1, "of_epoch": 16}, 6, 8, (1, 16, 4)),
        # Too few are left for a step of theirs.
        ({"images": 72, "epoch": 1, "of_epoch": 32}, 10, 8, (2, 0, 4)),
        ({"images": 80, "epoch": 2, "of_epoch": 0}, 10, 8, (2, 0, 4)),
        # Of another dataset, which was larger.
        ({"images": 1000, "epoch": 1, "of_epoch": 900}, 8, 10, (2, 0, 5)),
    ],
)
def test_by_epochs_steps_are_counted_so_that_the_last_is_the_end(job, kept, per_step, start, first):
    plan = job("schedule").Schedule(IMAGES, per_step, 4, 0, kept)
    assert (plan.start, next(plan.epochs()), plan.total) == (start, first, 4 * (IMAGES // per_step))
    ends = [done for done in range(plan.start + 1, plan.total + 1) if plan.ends_epoch(done)]
    assert len(ends) == 4 - first[0]
    assert ends[-1] == plan.total
    told = plan.place(plan.total)
    assert (told["epoch"], told["of_epoch"]) == (4, 0)
    assert told["images"] == (kept or {"images": 0})["images"] + (plan.total - start) * per_step
