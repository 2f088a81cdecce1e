"""GPU code is found in libraries by the headers around it. The libraries here are synthetic."""

import io
import struct
import zipfile

import pytest

from gpubed.recipes import fatbin
from gpubed.recipes.fatbin import Architectures

PTX, CUBIN = 1, 2


def entry(kind, sm, code=b"\x90" * 40):
    """One entry of a fatbin, with the sizes that its header claims."""
    return struct.pack("<HHIQIIHHI32x", kind, 0x101, 64, len(code), 0, 0, 0, 0, sm) + code


def container(*entries):
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def carried(data):
    return fatbin.of_library(io.BytesIO(data))


def test_code_for_several_architectures_is_found_among_other_bytes():
    code = container(entry(CUBIN, 70), entry(CUBIN, 90), entry(PTX, 90))
    assert carried(b"\x7fELF" + code + b"junk" + container(entry(CUBIN, 120))) == Architectures(
        cubin=("7.0", "9.0", "12.0"), ptx=("9.0",)
    )


def test_code_that_looks_like_a_header_is_not_read_as_one():
    inner = container(entry(CUBIN, 50))
    assert carried(container(entry(CUBIN, 80, code=inner))).cubin == ("8.0",)


@pytest.mark.parametrize(
    "data",
    [b"", b"no GPU code", struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 1 << 40), container()],
    ids=["empty", "none", "magic number alone", "container without code"],
)
def test_libraries_without_gpu_code(data):
    assert carried(data) == Architectures()


def test_a_few_special_kernels_are_no_architecture():
    common = [container(entry(CUBIN, 80))] * 200
    assert carried(b"".join([*common, container(entry(CUBIN, 90))])).cubin == ("8.0",)


def test_a_wheel_is_read_library_by_library(tmp_path):
    wheel = tmp_path / "some.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("lib/libnccl.so.2", container(entry(CUBIN, 70)))
        archive.writestr("lib/plain.so", b"\x7fELF")
        archive.writestr("lib/notes.txt", container(entry(CUBIN, 60)))
    assert fatbin.of_wheel(wheel) == {"lib/libnccl.so.2": Architectures(cubin=("7.0",))}


@pytest.mark.parametrize(
    ("capability", "runs"),
    [("7.0", True), ("7.5", True), ("6.1", False), ("8.0", False), ("9.0", True), ("12.0", True)],
)
def test_machine_code_runs_on_later_minor_versions_and_ptx_on_all_later_ones(capability, runs):
    assert Architectures(cubin=("7.0",), ptx=("9.0",)).serve(capability) is runs
