"""A dataset that grows by whole shards, in the layout of job `prepare`.

`dataset.json` alone says what belongs to it: shards, their checksums, and the number in the stream
of the last message. It is replaced in one step after a shard is on the disk, so that a job that was
killed at any moment goes on where `dataset.json` ends.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path


class Dataset:
    """A dataset filled from one stream, by one job at a time.

    Args:
        folder: Its folder.
        stream: Name of the stream.

    Raises:
        ValueError: The folder holds something else.
    """

    def __init__(self, folder: Path, stream: str) -> None:
        self.folder, self._archive = folder, None
        told = folder / "dataset.json"
        if told.exists():
            self.told = json.loads(told.read_text())
            if self.told.get("stream") != stream:
                raise ValueError(
                    f"{folder} was not filled from stream {stream}: choose another name"
                )
        elif folder.exists() and any(folder.glob("*")):
            raise ValueError(f"{folder} has no dataset.json: choose another name, or remove it")
        else:
            self.told = {"stream": stream, "last_sequence": 0, "images": 0, "classes": []}
            self.told |= {"shards": [], "shard_images": [], "sha256": {}}
        folder.mkdir(parents=True, exist_ok=True)
        for stray in {*folder.glob("*.tar"), *folder.glob("*.index.json"), *folder.glob(".*.part")}:
            if stray.name not in self.told["sha256"]:
                stray.unlink()
        self.drop()
        self._write_sums()

    @property
    def last(self) -> int:
        """Number in the stream of the last message that is on the disk."""
        return self.told["last_sequence"]

    @property
    def bytes(self) -> int:
        """Present size of the open shard."""
        return self._archive.offset if self._archive else 0

    def drop(self) -> None:
        """Forgets the open shard: its messages are read again."""
        if self._archive:
            self._archive.close()
        self._archive, self._places, self._classes = None, [], list(self.told["classes"])
        self._draft = self.folder / ".shard.part"

    def add(self, sequence: int, content: bytes, suffix: str, label: str) -> None:
        """Appends a message to the open shard: its content, and the number of its class."""
        if not self._archive:
            self._archive = tarfile.open(self._draft, "w")  # noqa: SIM115  # closed in `commit`
        if label not in self._classes:
            self._classes.append(label)
        name, number = f"{sequence:012d}.{suffix}", self._classes.index(label)
        self._places.append((name, self._append(name, content), len(content), number))
        self._append(f"{sequence:012d}.cls", str(number).encode())

    def commit(self, last: int) -> None:
        """Closes the open shard; `last` is the last message that is done."""
        made = dict(self.told, last_sequence=last, classes=self._classes)
        if self._archive:
            self._archive.close()
            name = f"{self.folder.name}-{len(made['shards']):05d}"
            index = json.dumps({"bytes": self._draft.stat().st_size, "images": self._places})
            with self._draft.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                os.fsync(file.fileno())
            self._draft.rename(self.folder / f"{name}.tar")
            of_index = self._replace(f"{name}.index.json", f"{index}\n")
            made["sha256"] = {
                **made["sha256"],
                f"{name}.tar": digest,
                f"{name}.index.json": of_index,
            }
            made["shards"] = [*made["shards"], f"{name}.tar"]
            made["shard_images"] = [*made["shard_images"], len(self._places)]
            made["images"] += len(self._places)
        self._replace("dataset.json", json.dumps(made, indent=2) + "\n")
        self.told, self._archive = made, None
        self.drop()
        self._write_sums()

    def _append(self, name: str, content: bytes) -> int:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        self._archive.addfile(entry, io.BytesIO(content))
        blocks = -(-len(content) // tarfile.BLOCKSIZE)
        return self._archive.offset - blocks * tarfile.BLOCKSIZE

    def _write_sums(self) -> None:
        path = self.folder / "dataset.json"
        if path.exists():
            sums = self.told["sha256"] | {path.name: hashlib.sha256(path.read_bytes()).hexdigest()}
            text = "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))
            self._replace("SHA256SUMS", text)

    def _replace(self, name: str, text: str) -> str:
        """Replaces a file in one step, on the disk when this returns; returns its digest."""
        draft = self.folder / f".{name}.part"
        with draft.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(self.folder / name)
        folder = os.open(self.folder, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        return hashlib.sha256(text.encode()).hexdigest()
