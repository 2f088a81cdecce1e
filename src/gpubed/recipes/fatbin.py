"""Reads the GPU architectures that the libraries of a Python wheel contain code for.

CUDA compilers embed GPU code as *fatbins*: a header (magic, version, sizes), then
one entry per architecture, machine code (cubin) or PTX. The headers are never
compressed, so reading them needs no CUDA tool and no GPU. The layout is that of
`fatbinary.h` in CUDA toolkits up to 9, and has not changed since.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from pydantic import BaseModel, ConfigDict

_MAGIC = struct.pack("<IHH", 0xBA55ED50, 1, 16)
_HEADER = struct.Struct("<8xQ")
# Kind, version, size of this header, size of the code; the architecture is at byte 28.
_ENTRY = struct.Struct("<H2xIQ12xI")
_PTX, _CUBIN = 1, 2
# An architecture with less than this share of the largest one's entries has only a few special
# kernels, and the library cannot run on it.
_STRAY = 0.02


class Architectures(BaseModel):
    """The compute capabilities, such as 8.0, that code exists for.

    Attributes:
        cubin: Machine code, which also runs on later minor versions of the same major one.
        ptx: Code that the driver compiles for this capability or any later one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    cubin: tuple[str, ...] = ()
    ptx: tuple[str, ...] = ()

    def serve(self, capability: str) -> bool:
        """Return whether a GPU of this compute capability can run the code."""
        wanted = version(capability)
        cubins = [version(text) for text in self.cubin]
        return any(major == wanted[0] and minor <= wanted[1] for major, minor in cubins) or any(
            version(text) <= wanted for text in self.ptx
        )


def version(capability: str) -> tuple[int, int]:
    """Return major and minor version of a compute capability."""
    major, minor = capability.split(".")
    return int(major), int(minor)


def of_wheel(wheel: Path) -> dict[str, Architectures]:
    """Return the architectures of each library of a wheel that contains GPU code."""
    found: dict[str, Architectures] = {}
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            if ".so" in Path(member.filename).suffixes:
                with archive.open(member) as stream:
                    code = of_library(stream)
                if code.cubin or code.ptx:
                    found[member.filename] = code
    return found


def of_library(stream: IO[bytes]) -> Architectures:
    """Return the architectures that a library contains code for."""
    with tempfile.TemporaryFile() as copy:  # libraries of 1 GB are usual
        shutil.copyfileobj(stream, copy, 1 << 20)
        if not copy.tell():
            return Architectures()
        copy.flush()
        with mmap.mmap(copy.fileno(), 0, access=mmap.ACCESS_READ) as data:
            counts = Counter(_entries(data))
    return Architectures(cubin=_names(counts, _CUBIN), ptx=_names(counts, _PTX))


def _entries(data: mmap.mmap) -> Iterator[tuple[int, int]]:
    start = 0
    while (start := data.find(_MAGIC, start)) >= 0:
        at = start + len(_MAGIC) + 8
        (size,) = _HEADER.unpack_from(data, start) if at <= len(data) else (0,)
        end = at + size
        if end > len(data):  # a chance match of the magic, as in a program that reads fatbins
            start += 1
            continue
        while at + _ENTRY.size <= end:
            kind, header, code, architecture = _ENTRY.unpack_from(data, at)
            if not header:
                break
            yield kind, architecture
            at += header + code
        start = end


def _names(counts: Counter[tuple[int, int]], kind: int) -> tuple[str, ...]:
    floor = _STRAY * max(counts.values(), default=0)
    kept = sorted(sm for (of, sm), count in counts.items() if of == kind and count > floor)
    return tuple(f"{sm // 10}.{sm % 10}" for sm in kept)
