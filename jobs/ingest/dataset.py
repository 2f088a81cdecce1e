"""A dataset that grows by whole shards, in the layout of job `prepare`.

`dataset.json` alone says what belongs to it: shards, their checksums, and the number in the stream
of the last message. It is replaced in one step after a shard is on the disk, so that a job that was
killed at any moment goes on where `dataset.json` ends; a shard beyond that is written over.
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
        self.folder, self._draft = folder, folder / ".shard.part"
        self._archive, self._places = None, []
        if (folder / "dataset.json").exists():
            self.told = json.loads((folder / "dataset.json").read_text())
            if self.told.get("stream") != stream:
                raise ValueError(
                    f"{folder} was not filled from stream {stream}: choose another name"
                )
        elif any(folder.glob("[!.]*")):
            raise ValueError(f"{folder} has no dataset.json: choose another name, or remove it")
        else:
            folder.mkdir(exist_ok=True)
            self.told = {"stream": stream, "last_sequence": 0, "images": 0, "classes": []}
            self.told |= {"shards": [], "shard_images": [], "sha256": {}}
        self._write()

    @property
    def last(self) -> int:
        """Number in the stream of the last message that is on the disk."""
        return self.told["last_sequence"]

    def is_full(self, messages: int, mebibytes: float) -> bool:
        """Whether the open shard has as many messages, or is as large."""
        return len(self._places) >= messages or self._archive.offset >= mebibytes * 2**20

    def add(self, sequence: int, content: bytes, suffix: str, label: str) -> None:
        """Appends a message to the open shard: its content, and the number of its class."""
        if not self._archive:
            self._archive = tarfile.open(self._draft, "w")  # noqa: SIM115  # closed in `commit`
        classes = self.told["classes"]
        if label not in classes:
            classes.append(label)
        name, number = f"{sequence:012d}", classes.index(label)
        place = self._archive.offset + tarfile.BLOCKSIZE
        self._places.append((f"{name}.{suffix}", place, len(content), number))
        for ending, data in ((suffix, content), ("cls", str(number).encode())):
            entry = tarfile.TarInfo(f"{name}.{ending}")
            entry.size = len(data)
            self._archive.addfile(entry, io.BytesIO(data))

    def commit(self, last: int) -> None:
        """Closes the open shard; `last` is the last message that is done."""
        if last == self.last:
            return
        self.told["last_sequence"] = last
        if self._archive:
            self._archive.close()
            name = f"{self.folder.name}-{len(self.told['shards']):05d}"
            index = json.dumps({"bytes": self._draft.stat().st_size, "images": self._places})
            with self._draft.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                os.fsync(file.fileno())
            self._draft.rename(self.folder / f"{name}.tar")
            self.told["sha256"] |= {
                f"{name}.tar": digest,
                f"{name}.index.json": self._replace(f"{name}.index.json", f"{index}\n"),
            }
            self.told["shards"].append(f"{name}.tar")
            self.told["shard_images"].append(len(self._places))
            self.told["images"] += len(self._places)
            self._archive, self._places = None, []
        self._write()
        print(f"message {last}, {len(self.told['shards'])} shards", flush=True)

    def _write(self) -> None:
        digest = self._replace("dataset.json", json.dumps(self.told, indent=2) + "\n")
        sums = self.told["sha256"] | {"dataset.json": digest}
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
