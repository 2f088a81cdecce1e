"""Files that are there whole or not at all."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

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
