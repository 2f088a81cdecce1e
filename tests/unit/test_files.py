"""Files that are there whole or not at all."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from gpubed.core import files


def test_threads_that_write_one_file_at_once_leave_one_of_their_contents(tmp_path: Path) -> None:
    path, contents = tmp_path / "known", [bytes([65 + n]) * 100_000 for n in range(8)]
    together = Barrier(len(contents))

    def write(content: bytes) -> None:
        together.wait()
        for _ in range(20):
            files.write(path, content)

    with ThreadPoolExecutor(len(contents)) as pool:
        list(pool.map(write, contents))
    assert path.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_names_the_file() -> None:
    """The system does not, of a file that is open; `/dev/full` is as full as a disk."""
    path = Path("/dev/full")
    with (
        pytest.raises(OSError, match="No space left on device: '/dev/full'"),
        files.named(path),
        path.open("w", buffering=1) as file,
    ):
        file.write("a line\n")


def test_what_is_no_file_stays_what_it_is_and_gets_all_of_it(tmp_path: Path) -> None:
    """A pipe stands for a device: root took `/dev/null` from all, where that was named."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        files.write_named(pipe, b"all of it")
        assert (pipe.is_fifo(), os.read(reader, 99)) == (True, b"all of it")
    finally:
        os.close(reader)
    assert list(tmp_path.iterdir()) == [pipe]
