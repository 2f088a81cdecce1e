"""What `gpubed chaos corrupt-checkpoint` damages comes back as it was, whatever became of it."""

import hashlib
import subprocess

import pytest

from support.damaged import checkpoints

pytestmark = pytest.mark.process

__all__ = ["checkpoints"]


def test_a_checkpoint_that_was_damaged_twice_comes_back_as_it_was(checkpoints):
    """Nobody undid the first, which was killed: the copy that it kept is the only good one."""
    file = checkpoints.folder / "step"
    checkpoints.harm().do()
    assert file.read_bytes() != checkpoints.content
    second = checkpoints.harm()
    second.do()
    assert file.read_bytes() != checkpoints.content
    second.undo()
    second.undo()
    assert file.read_bytes() == checkpoints.content
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["step", "step.sha256"]


def test_another_that_was_damaged_before_comes_back_too(checkpoints):
    checkpoints.harm().do()
    (checkpoints.folder / "step2").write_bytes(b"newer" * 100)
    checkpoints.harm("step2").do()
    assert (checkpoints.folder / "step").read_bytes() == checkpoints.content
    checkpoints.harm("step2").undo()
    assert (checkpoints.folder / "step2").read_bytes() == b"newer" * 100


def test_a_copy_that_was_cut_short_is_not_put_back(checkpoints):
    (checkpoints.folder / ".copying-for-chaos").write_bytes(b"half")
    checkpoints.harm().undo()
    checkpoints.harm().do()
    checkpoints.harm().undo()
    assert (checkpoints.folder / "step").read_bytes() == checkpoints.content


def test_what_a_training_wrote_anew_or_removed_meanwhile_stays_so(checkpoints):
    harm, file = checkpoints.harm(), checkpoints.folder / "step"
    harm.do()
    file.write_bytes(b"anew")
    (checkpoints.folder / "step.sha256").write_text(f"{hashlib.sha256(b'anew').hexdigest()}  step")
    harm.undo()
    assert file.read_bytes() == b"anew"
    harm.do()
    file.unlink()
    harm.undo()
    assert not file.exists()


def set_aside(folder, number=""):
    """Rename a checkpoint as job imagenet does with one that is damaged."""
    (folder / "step").rename(folder / f"step.damaged{number}")
    (folder / "step.sha256").rename(folder / f"step.damaged{number}.sha256")


def test_what_a_training_set_aside_as_damaged_comes_back(checkpoints):
    """The copy was removed: it was the only good one, and perhaps the only checkpoint."""
    harm, folder = checkpoints.harm(), checkpoints.folder
    harm.do()
    set_aside(folder)
    (folder / "step2").write_bytes(b"newer")
    harm.undo()
    harm.undo()
    assert (folder / "step").read_bytes() == checkpoints.content
    subprocess.run(["sha256sum", "--check", "step.sha256"], cwd=folder, check=True)
    assert (folder / "step2").read_bytes() == b"newer"
    names = ["step", "step.damaged", "step.damaged.sha256", "step.sha256", "step2"]
    assert sorted(path.name for path in folder.iterdir()) == names


def test_it_has_the_checksum_that_it_had_and_no_earlier_ones(checkpoints):
    folder = checkpoints.folder
    (folder / "step.damaged").write_bytes(b"of another day")
    (folder / "step.damaged.sha256").write_text(f"{'0' * 64}  step\n")
    checkpoints.harm().do()
    set_aside(folder, 1)
    checkpoints.harm().undo()
    assert (folder / "step").read_bytes() == checkpoints.content
    assert checkpoints.content_sum in (folder / "step.sha256").read_text()


def test_what_it_wrote_anew_after_that_stays(checkpoints):
    harm, folder = checkpoints.harm(), checkpoints.folder
    harm.do()
    set_aside(folder)
    (folder / "step").write_bytes(b"anew")
    (folder / "step.sha256").write_text(f"{hashlib.sha256(b'anew').hexdigest()}  step\n")
    harm.undo()
    assert (folder / "step").read_bytes() == b"anew"
    assert not (folder / ".chaos-step").exists()


def test_one_without_a_checksum_that_was_set_aside_comes_back_too(checkpoints):
    """As the job of docs/how-to/write-a-job.md does."""
    harm, folder = checkpoints.harm(), checkpoints.folder
    (folder / "step.sha256").unlink()
    harm.do()
    (folder / "step").rename(folder / "step.damaged")
    harm.undo()
    assert (folder / "step").read_bytes() == checkpoints.content
    assert not (folder / "step.sha256").exists()
