"""Checkpoints of job imagenet: kept, damaged, and gone on from."""

import errno
import hashlib
import pickle
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from support.imagenet import CPU, job

__all__ = ["job"]


@pytest.fixture
def files(job, tmp_path):
    """Checkpoints of a torch that writes pickles, and what they say."""
    checkpoint, said = job("checkpoint"), []
    checkpoint.torch.save = pickle.dump
    checkpoint.torch.load = lambda path, **_: pickle.loads(path.read_bytes())
    kept = checkpoint.Checkpoints(tmp_path / "kept", 2, said.append)
    return SimpleNamespace(module=checkpoint, kept=kept, said=said, folder=tmp_path / "kept")


def newest(kept):
    """Return where the newest whole checkpoint is; None where there is none."""
    found = kept.newest()
    return found and found[0]


def test_the_newest_checkpoints_stay_each_with_its_checksum(files):
    for images in (100, 200, 1000):
        files.kept.write(images, {"images": images})
    names = [path.name for path in files.kept.all()]
    assert names == ["images-000000000200.pt", "images-000000001000.pt"]
    assert {path.name for path in files.folder.iterdir()} == {
        *names,
        *(f"{name}.sha256" for name in names),
    }
    last, content = files.kept.newest()
    assert (last.name, content) == (names[-1], {"images": 1000})
    digest = hashlib.sha256(last.read_bytes()).hexdigest()
    assert last.with_name(f"{last.name}.sha256").read_text() == f"{digest}  {last.name}\n"


def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_is_told(files):
    for images in (100, 200):
        files.kept.write(images, {"images": images})
    last = files.kept.all()[-1]
    last.write_bytes(last.read_bytes()[:-1])
    assert newest(files.kept) == files.kept.all()[0]
    assert files.said == [
        f"checkpoint {last} is damaged: it does not have the SHA-256 beside it; "
        f"set aside as {last.name}.damaged",
    ]
    assert newest(files.kept) == files.kept.all()[-1]
    assert len(files.said) == 1


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (
            pickle.UnpicklingError("Weights only load failed. … weights_only=False"),
            "UnpicklingError",
        ),
        (KeyError(101), "KeyError"),
        (EOFError(), "EOFError"),
        (OSError(errno.EINVAL, "Invalid argument"), "OSError"),
        (RuntimeError("failed locating file constants.pkl"), "RuntimeError"),
    ],
)
def test_one_that_is_no_checkpoint_is_set_aside_and_the_one_before_is_taken(files, error, kind):
    """It has a checksum as a whole one has; torch advises to execute what is in it."""
    files.kept.write(100, {"images": 100})
    files.kept.write(200, {"images": 200})
    last, load = files.kept.all()[-1], files.module.torch.load

    def refuse(path, *, map_location, weights_only):
        assert weights_only
        if path == last:
            raise error
        return load(path)

    files.module.torch.load = refuse
    assert files.kept.newest() == (files.kept.all()[0], {"images": 100})
    assert files.said == [
        f"checkpoint {last} cannot be gone on from, though it has the SHA-256 beside it: torch "
        f"finds no tensors, numbers and names in it ({kind}); set aside as {last.name}.damaged",
    ]
    assert {path.name for path in files.folder.glob("*damaged*")} == {
        *(f"{last.name}.damaged", f"{last.name}.damaged.sha256"),
    }


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"state_dict": {}, "images": 1}, "it is another program's, without model, classes"),
        ([1, 2], "it is another program's: it has no names"),
    ],
)
def test_nor_is_another_programs_gone_on_from(files, job, content, why):
    ours = dict.fromkeys(job("keeping").HOLDS, 1)
    files.kept.write(100, ours)
    files.kept.write(200, content)
    assert files.kept.newest(("model", "classes", "images")) == (files.kept.all()[0], ours)
    assert why in files.said[0]


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        OSError(errno.ESTALE, "Stale file handle"),
    ],
)
def test_too_little_memory_and_a_storage_that_is_gone_say_nothing_of_a_checkpoint(files, error):
    files.kept.write(100, {"images": 100})
    before = sorted(files.folder.iterdir())

    def refuse(*_, **__):
        raise error

    files.module.torch.load = refuse
    with pytest.raises((type(error), files.module.Unread)):
        files.kept.newest()
    assert (sorted(files.folder.iterdir()), files.said) == (before, [])


def test_a_rank_that_cannot_read_what_the_first_one_could_says_so(files, job):
    files.kept.write(100, {"images": 100})
    [last] = files.kept.all()
    keeper = object.__new__(job("keeping").Keeper)
    keeper._files = files.kept
    keeper._averaging = SimpleNamespace(rank=1, gather=lambda _: [(last, ""), None])
    with pytest.raises(job("keeping").Failed, match=r"cannot be read by this one: it is another"):
        keeper.newest(10)


def test_damaged_checkpoints_take_no_place_of_those_to_keep(files):
    """Also where two of one name were: each stays for its owner, with its checksum."""
    kept = files.module.Checkpoints(files.folder, 1, files.said.append)
    for _ in range(2):
        kept.write(300, {"images": 300})
        [last] = kept.all()
        last.write_bytes(b"torn")
        assert newest(kept) is None
    kept.write(100, {"images": 100})
    assert newest(kept) == files.folder / "images-000000000100.pt"
    name = "images-000000000300.pt.damaged"
    assert {path.name for path in files.folder.glob("*damaged*")} == {
        *(name, f"{name}.sha256", f"{name}1", f"{name}1.sha256"),
    }


def test_a_damaged_checkpoint_that_cannot_be_set_aside_costs_no_new_one(files, monkeypatch):
    kept = files.module.Checkpoints(files.folder, 1, files.said.append)
    kept.write(300, {"images": 300})
    [last] = kept.all()
    last.write_bytes(b"torn")

    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "rename", refuse)
    assert newest(kept) is None
    assert files.said[0].endswith("; it could not be set aside: [Errno 13] Permission denied")
    for images in (100, 200):
        kept.write(images, {"images": images})
        assert newest(kept) == files.folder / f"images-{images:012d}.pt"


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO, errno.EACCES])
@pytest.mark.parametrize("suffix", [".pt", ".sha256"])
def test_what_the_storage_does_not_give_is_no_damage(files, job, monkeypatch, suffix, code):
    """An NFS server that is back answers its first reads so: all that was learned would be lost."""
    for images in (100, 200):
        files.kept.write(images, {"images": images})
    before = sorted(files.folder.iterdir())
    keeper = object.__new__(job("keeping").Keeper)
    keeper._files, keeper._averaging = files.kept, SimpleNamespace(rank=0, gather=lambda it: [it])
    give = Path.open

    def refuse(path, *mode, **more):
        if path.suffix == suffix:
            raise OSError(code, "not now")
        return give(path, *mode, **more)

    with monkeypatch.context() as storage:
        storage.setattr(Path, "open", refuse)
        with pytest.raises(job("keeping").Failed) as caught:
            keeper.newest(10)
    assert str(caught.value) == (
        f"checkpoint {files.kept.all()[-1]} cannot be read, and may be whole all the same: "
        f"[Errno {code}] not now; see to the storage, then start it again"
    )
    assert (sorted(files.folder.iterdir()), files.said) == (before, [])
    assert newest(files.kept) == files.kept.all()[-1]


def test_all_ranks_end_where_the_first_cannot_read(job):
    """One that waited for it would be killed after minutes, and say something else."""
    keeper = object.__new__(job("keeping").Keeper)
    keeper._files = None
    keeper._averaging = SimpleNamespace(rank=1, gather=lambda _: [(None, "cannot be read"), None])
    with pytest.raises(job("keeping").Failed, match="cannot be read"):
        keeper.newest(10)


def test_without_any_whole_checkpoint_a_training_begins(files):
    assert newest(files.kept) is None
    files.kept.write(1, {})
    files.folder.joinpath("images-000000000001.pt.sha256").unlink()
    assert newest(files.kept) is None


def test_what_a_killed_writer_left_goes_with_the_next_checkpoint(files, monkeypatch):
    class Killed(BaseException):
        pass

    def killed(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(files.module, "digest", killed)
        for images in (100, 110):
            with pytest.raises(Killed):
                files.kept.write(images, {"images": images})
    assert list(files.folder.glob("*.part")), "a kill leaves it"
    files.kept.write(120, {"images": 120})
    assert {path.name for path in files.folder.iterdir()} == {
        *("images-000000000120.pt", "images-000000000120.pt.sha256"),
    }


def test_what_cannot_be_removed_ends_no_training(files):
    files.kept.write(100, {"images": 100})
    [path] = files.kept.all()
    path.unlink()
    path.mkdir()  # nothing removes it as a file
    files.kept.write(200, {"images": 200})
    files.kept.write(300, {"images": 300})
    assert files.kept.newest()[1] == {"images": 300}
    assert files.said == [f"{path} could not be removed: [Errno 21] Is a directory: '{path}'"]


def test_a_full_disk_leaves_the_checkpoints_before(files):
    files.kept.write(100, {"images": 100})
    before = sorted(files.folder.iterdir())

    def full(_state, file):
        file.write(b"a part")
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as error:
            raise RuntimeError("unexpected pos 64 vs 0") from error

    files.module.torch.save = full
    with pytest.raises(files.module.NotWritten) as caught:
        files.kept.write(200, {"images": 200})
    assert str(caught.value) == (
        f"checkpoint {files.folder}/images-000000000200.pt could not be written: "
        f"[Errno 28] No space left on device; the one before stays: {before[0]}"
    )
    assert sorted(files.folder.iterdir()) == before
    assert newest(files.kept) == before[0]


@pytest.mark.parametrize(
    ("images_per_step", "kept", "start", "total"),
    [
        (256, None, 0, 1000),
        (256, {"images": 204_800, "images_per_step": 256}, 800, 1000),
        # A node of four is lost: as many images are left, in more steps.
        (192, {"images": 204_800, "images_per_step": 256}, 1066, 1334),
        (512, {"images": 204_800, "images_per_step": 256}, 400, 500),
        (256, {"images": 204_800}, 800, 1000),  # as checkpoints were
        # Killed after its last checkpoint: nobody was told its figures.
        (256, {"images": 256_000, "images_per_step": 256}, 999, 1000),
        (96, {"images": 256_128, "images_per_step": 256}, 2666, 2667),
    ],
)
def test_a_training_is_as_long_on_other_ranks(job, images_per_step, kept, start, total):
    plan = job("schedule").Schedule(10 * images_per_step, images_per_step, None, 1000, kept)
    assert (plan.start, plan.total) == (start, total)


@pytest.mark.parametrize(
    ("images_per_step", "seen", "resumed_at", "said"),
    [
        (256, 204_800, 800, ""),
        (
            192,
            204_800,
            1066,
            "a step has 192 images on these ranks, and had 256 when it began: "
            "1334 steps instead of 1000",
        ),
        (
            256,
            512_000,
            2000,
            "the checkpoint has 2000 steps, and 1000 are asked for: one is made "
            "once more, for the figures, and not kept; raise epochs or steps to go on",
        ),
    ],
)
def test_other_steps_than_were_asked_for_are_said(job, images_per_step, seen, resumed_at, said):
    training = object.__new__(job("training").Training)
    training.settings = SimpleNamespace(steps=1000, epochs=None)
    kept = {"images": seen, "images_per_step": 256}
    training.schedule = job("schedule").Schedule(2560, images_per_step, None, 1000, kept)
    assert training.schedule.resumed_at == resumed_at
    assert training._of_steps() == said


@pytest.mark.parametrize(("resumed_at", "is_kept"), [(0, True), (9, True), (10, False)])
def test_a_step_that_is_made_once_more_is_not_kept(job, resumed_at, is_kept):
    """It would stand in the place of a whole one, or count fewer steps than it has."""
    training = object.__new__(job("training").Training)
    kept = {"images": 32 * resumed_at}
    training.schedule, training.stop = job("schedule").Schedule(3200, 32, None, 10, kept), None
    training.feed = SimpleNamespace(held_out=None, classes=10)
    training.keeper, training._scaler = MagicMock(), MagicMock()
    training.keeper.is_due.return_value = True
    training._paused, training._check_loss = MagicMock(), MagicMock()
    training._between(10)
    assert training.keeper.write.called == is_kept


NAN = float("nan")


def with_losses(job, losses, path=None):
    """Return a training that has made such losses, from a checkpoint or not; and what it does."""
    training = object.__new__(job("training").Training)
    training.averaging = SimpleNamespace(gather=lambda mine: [mine])
    job("training").torch.stack = lambda losses: SimpleNamespace(
        mean=lambda: SimpleNamespace(item=lambda: sum(loss.item() for loss in losses))
    )
    made = [SimpleNamespace(item=lambda loss=loss: loss) for loss in losses]
    training._first_losses, training._last_losses, training._base_rate = made, made, 0.1
    kept = path and {"images": 3200, "images_per_step": 32}
    training.schedule = job("schedule").Schedule(3200, 32, None, 1000, kept)
    training.keeper, training.stop = MagicMock(path=path), None
    training.keeper.is_due.return_value = True
    training.feed = SimpleNamespace(held_out=None, classes=10)
    training.clock = training.usage = SimpleNamespace(paused=nullcontext)
    training._scaler = MagicMock()
    return training


def test_a_loss_that_is_no_number_is_not_kept(job):
    training = with_losses(job, [2.0, NAN])
    with pytest.raises(
        job("keeping").Failed, match=r"the loss is nan: lower learning_rate, .* 0.1"
    ):
        training._between(2)
    assert not training.keeper.write.called
    with_losses(job, [2.0, 1.0])._between(2)


def test_where_a_checkpoint_has_none_already_no_other_setting_helps(job):
    """Kept after a step whose loss was a number, and whose weights were past it."""
    path = Path("/shared/checkpoints/mine/images-000000003200.pt")
    with pytest.raises(job("keeping").Failed) as failed:
        with_losses(job, [NAN, NAN], path)._between(102)
    assert str(failed.value) == (
        f"the loss is nan in the first step from checkpoint {path} on: what it learned is lost; "
        f"rename it to {path.name}.damaged, to go on from the one before with a lower learning_rate"
    )
    with pytest.raises(job("keeping").Failed, match="the loss is nan: lower learning_rate"):
        with_losses(job, [2.0, NAN], path)._between(102)


def test_who_is_asked_meanwhile_ends_after_what_takes_its_time(job):
    """Only between them ranks miss each other: one that is stuck shall not be waited for."""
    training, did = object.__new__(job("training").Training), []

    @contextmanager
    def at_length():
        did.append("[")
        yield
        did.append("]")

    training.schedule = job("schedule").Schedule(3200, 32, None, 100, None)
    training.stop = SimpleNamespace(
        at_length=at_length, meets=lambda _: True, agreed=lambda _: did.append("meets")
    )
    training.clock = training.usage = SimpleNamespace(paused=nullcontext)
    training.feed = SimpleNamespace(held_out=True, classes=10)
    training._scaler = MagicMock()
    training._validate = lambda _: did.append("validates")
    training._check_loss = lambda: did.append("looks")
    write = lambda *_: did.append("writes")  # noqa: E731
    training.keeper = SimpleNamespace(is_due=lambda *_: True, failures=0, write=write)
    training._between(50)
    training._between(100)
    kept = ["looks", "[", "writes", "]"]
    assert did == ["meets", *kept, "[", "validates", "]", *kept]


@pytest.mark.parametrize(
    ("is_fp16", "scaler", "loaded"),
    [(True, {"scale": 8.0}, True), (True, {}, False), (False, {"scale": 8.0}, False)],
)
def test_a_run_that_goes_on_does_so_by_its_own_settings(job, is_fp16, scaler, loaded):
    training = object.__new__(job("training").Training)
    training.settings = SimpleNamespace(momentum=0.5, weight_decay=0.0)
    training._scaler, training.keeper = MagicMock(), MagicMock()
    training._scaler.is_enabled.return_value = is_fp16
    groups = []
    training.averaging = MagicMock()
    training.averaging.optimizer.param_groups = groups
    training.averaging.restore = groups.append
    before = {"momentum": 0.9, "weight_decay": 1e-4, "lr": 0.1}
    kept = {"optimizer": before, "scaler": scaler}
    training._restore(kept)
    assert groups == [{"momentum": 0.5, "weight_decay": 0.0, "lr": 0.1}]
    assert training._scaler.load_state_dict.called == loaded
    training.keeper.restore_random.assert_called_once_with(kept)


def test_a_disk_that_takes_its_time_is_told(job, capsys, monkeypatch):
    keeping = job("keeping")
    monkeypatch.setattr(keeping, "TELL_S", 0.02)
    keeper = object.__new__(keeping.Keeper)
    keeper._averaging = SimpleNamespace(rank=0, state=dict, gather=lambda mine: [mine])
    keeper._settings, keeper._device = SimpleNamespace(model="resnet18"), CPU
    keeper._files = SimpleNamespace(write=lambda *_: time.sleep(0.2))
    keeper.failures = 0
    keeper.write({"images": 1}, 10, {})
    time.sleep(0.05)  # a line may be on its way
    assert "the checkpoint is still being written\n" in capsys.readouterr().out
    time.sleep(0.1)
    assert capsys.readouterr().out == ""
