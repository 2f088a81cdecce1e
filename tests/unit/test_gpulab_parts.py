"""Parcels of results, seeds of trials, and what GPULab's workers can run."""

import base64
import hashlib
import io
import json
import tarfile

import pytest

from gpubed.backends.gpulab import offers
from gpubed.backends.gpulab.client import Cluster, Worker
from gpubed.backends.gpulab.parcel import LIMIT, Damaged, Parcel
from gpubed.backends.gpulab.request import Resources

MARK = "gpubed-0123"


def archive(files, kind=tarfile.REGTYPE, target=""):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as made:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.type, member.linkname = len(content), kind, target
            made.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def lines(content, checksum=None):
    text = base64.b64encode(content).decode()
    sha256 = checksum or hashlib.sha256(content).hexdigest()
    facts = {"exit_code": 0, "left": [], "sha256": sha256}
    parts = [text[:20], text[20:], base64.b64encode(json.dumps(facts).encode()).decode()]
    return [f"{MARK}:{n}/{len(parts)}:{part}" for n, part in enumerate(parts, start=1)]


def filled(some, *own):
    parcel = Parcel(MARK, frozenset(own))
    assert all(parcel.takes(line) for line in some)
    return parcel


GOOD = archive({"metrics.json": b"{}", "sub/file": b"x"})


def test_a_parcel_gives_its_files_back(tmp_path):
    facts = filled(lines(GOOD)).unpack(tmp_path)
    assert facts.exit_code == 0
    assert (tmp_path / "metrics.json").read_text() == "{}"
    assert (tmp_path / "sub" / "file").read_text() == "x"


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_line_is_noticed(tmp_path, missing):
    some = lines(GOOD)
    del some[missing]
    with pytest.raises(Damaged, match="2 of 3 lines"):
        filled(some).unpack(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        archive({"../escaped": b"x"}),
        archive({"link": b""}, tarfile.SYMTYPE, "/etc/passwd"),
        archive({"link": b""}, tarfile.SYMTYPE, "."),
        archive({"device": b""}, tarfile.CHRTYPE),
        archive({"large": bytes(LIMIT + 1)}),
        b"no archive",
        GOOD[:40],
    ],
    ids=["above", "link", "link-inside", "device", "bomb", "nonsense", "cut"],
)
def test_a_hostile_parcel_writes_nothing_outside(tmp_path, content):
    inside = tmp_path / "run"
    inside.mkdir()
    with pytest.raises(Damaged):
        filled(lines(content)).unpack(inside)
    assert list(tmp_path.iterdir()) == [inside]
    assert list(inside.iterdir()) == []


@pytest.mark.parametrize("name", ["run.json", "./run.json", "run.json/x", "sub/../run.json"])
def test_nothing_is_written_by_our_own_names(tmp_path, name):
    (tmp_path / "run.json").write_text("ours")
    parcel = filled(lines(archive({name: b"forged", "sub/run.json": b"the job's"})), "run.json")
    parcel.unpack(tmp_path)
    assert (tmp_path / "run.json").read_text() == "ours"
    assert (tmp_path / "sub/run.json").read_text() == "the job's"
    assert parcel.left_out == [name]


def amount(total, free=None):
    free = total if free is None else free
    return {"systemTotal": total, "acquired": total, "used": total - free, "available": free}


def worker(cluster=6, gpus=8, free=None, **more):
    return Worker.model_validate(
        {
            "name": "w",
            "clusterId": cluster,
            "gpuModel": [{"vendor": "NVIDIA", "name": "Tesla V100-SXM3-32GB"}],
            "gpu": amount(gpus, free),
            "cpu": amount(48),
            "cpuMemoryMb": amount(256_000),
            "cudaVersionMajor": 12,
            **more,
        }
    )


def cluster(id_=6, **more):
    return Cluster.model_validate({"clusterId": id_, "haveAccess": True, **more})


def wanted(**changes):
    given = {"cpus": 4, "gpus": 8, "cpu_memory_gb": 16, "gpu_model": ("v100",), **changes}
    return Resources(**given)


def never(ask, storage=None, clusters=None, workers=None):
    return offers.never(ask, storage, clusters or [cluster()], workers or [worker()])


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (wanted(gpus=10), "has 10 of them (the largest has 8)"),
        (wanted(cluster_id=9), "no cluster 9; there are: 6"),
        (wanted(gpu_model=("A100", "H100")), "a GPU like A100 or H100"),
        (wanted(cpus=64), "64 CPUs and 16 GB besides 8 GPUs"),
        (wanted(cpu_memory_gb=512), "4 CPUs and 512 GB"),
        (wanted(min_cuda_version=13), "and CUDA 13"),
    ],
)
def test_what_no_worker_has_can_never_run(ask, says):
    assert says in never(ask)


def test_a_cluster_without_access_or_storage_is_no_use():
    closed = [cluster(haveAccess=False)]
    assert "may not use cluster 6" in never(wanted(cluster_id=6), clusters=closed)
    antwerp = [cluster(storagePathsAvailable=["/project_antwerp"])]
    assert "there is: /project_antwerp" in never(wanted(), "/project_ghent", antwerp)
    assert never(wanted(), "/project_antwerp/me", antwerp) == ""
    assert never(wanted(), None, antwerp) == ""
