"""Checkpoints of job imagenet: kept, damaged, and gone on from."""

import errno
import hashlib
import pickle
from types import SimpleNamespace

import pytest


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
        f"set aside as {last.name}.damaged"
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
        f"finds no tensors, numbers and names in it ({kind}); set aside as {last.name}.damaged"
    ]
    assert {path.name for path in files.folder.glob("*damaged*")} == {
        *(f"{last.name}.damaged", f"{last.name}.damaged.sha256")
    }


def test_without_any_whole_checkpoint_a_training_begins(files):
    assert newest(files.kept) is None
    files.kept.write(1, {})
    files.folder.joinpath("images-000000000001.pt.sha256").unlink()
    assert newest(files.kept) is None


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
