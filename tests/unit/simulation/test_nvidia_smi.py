"""The real nvidia-smi of Debian's packages on the pretended driver.

The packages are downloaded through this machine's own apt sources and opened, not installed.
"""

import csv
import shutil
import subprocess
from pathlib import Path

import pytest

from support import simulated

pytestmark = pytest.mark.process

RELEASES = {"bookworm": "535", "trixie": "550"}  # release, driver branch of its nvidia-smi
KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
ONE_OF_EACH = {simulated.model(name)["architecture"]: name for name in simulated.MODELS}.values()
QUERY = [
    "index",
    "name",
    "uuid",
    "serial",
    "pci.bus_id",
    "memory.total",
    "compute_cap",
    "driver_version",
    "persistence_mode",
    "pcie.link.gen.max",
    "temperature.gpu",
    "power.draw",
    "utilization.gpu",
    "mig.mode.current",
    "clocks_throttle_reasons.active",
    "clocks.max.memory",
    "ecc.mode.current",
    "ecc.errors.corrected.volatile.total",
    "ecc.errors.uncorrected.volatile.total",
    "ecc.errors.uncorrected.aggregate.total",
    "retired_pages.pending",
    "retired_pages.double_bit.count",
    "inforom.ecc",
    "vbios_version",
    "fan.speed",
    "compute_mode",
]


def archive():
    """Return the address of the Debian archive that this machine uses."""
    if not shutil.which("apt-get"):
        pytest.skip("no apt here")
    wanted = ["--format", "$(REPO_URI)", "Created-By: Packages", "Label: Debian"]
    said = subprocess.run(["apt-get", "indextargets", *wanted], capture_output=True, text=True)
    if not said.stdout:
        pytest.skip("this machine has no lists of a Debian archive: apt-get update")
    return said.stdout.split()[0]


def downloaded(release, folder):
    """Return the program nvidia-smi of a release, from its component non-free."""
    address = archive()
    if not KEYS.exists():
        pytest.skip(f"{KEYS} is not here")
    for part in ("lists/partial", "cache/archives/partial", "state", "none"):
        (folder / part).mkdir(parents=True)
    source = folder / "sources.list"
    source.write_text(f"deb [signed-by={KEYS}] {address} {release} non-free\n")
    options = {
        "Dir::Etc::SourceList": source,
        "Dir::Etc::SourceParts": folder / "none",
        "Dir::State": folder / "state",
        "Dir::State::Lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "-qq", *(f"-o{key}={value}" for key, value in options.items())]
    for command in (["update"], ["download", "nvidia-smi"]):
        done = subprocess.run([*apt, *command], cwd=folder, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"nvidia-smi of {release} is not to be had: {done.stderr.strip()[-200:]}")
    package = next(folder.glob("nvidia-smi_*.deb"))
    subprocess.run(["dpkg", "-x", package, folder / "root"], check=True)
    return folder / "root/usr/lib/nvidia/current/nvidia-smi"


@pytest.fixture(scope="session", params=RELEASES)
def program(request, tmp_path_factory):
    path = downloaded(request.param, tmp_path_factory.mktemp(request.param))
    assert path.stat().st_size > 100_000
    return path


@pytest.fixture
def smi(program, driver):
    """Return a function that runs nvidia-smi on the driver, and the driver."""

    def run(*arguments, check=True):
        return driver.run(program, *arguments, check=check)

    run.driver = driver
    return run


def rows(smi, *fields):
    said = smi(f"--query-gpu={','.join(fields)}", "--format=csv,noheader").stdout
    return list(csv.reader(said.splitlines(), skipinitialspace=True))


def matrix(smi):
    said = smi("topo", "-m").stdout.splitlines()
    gpus = [line for line in said[1:] if line.startswith("GPU")]
    return [[cell.strip() for cell in line.split("\t")[1 : len(gpus) + 1]] for line in gpus]


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_every_view_of_every_model(smi, name):
    pretended = smi.driver.has(name, gpus=2)
    model = pretended["model"]
    listed = smi("-L").stdout.splitlines()
    assert [line.split(" (")[0] for line in listed] == [f"GPU {n}: {model['name']}" for n in (0, 1)]
    assert all(gpu["uuid"] in line for gpu, line in zip(pretended["gpus"], listed, strict=True))
    mebibytes = model["memory"]["bytes"] >> 20
    assert smi().stdout.count(" Off |") >= 2
    assert f"Product Name                          : {model['name']}" in smi("-q").stdout
    assert f"<product_name>{model['name']}</product_name>" in smi("-q", "-x").stdout
    first = dict(zip(QUERY, rows(smi, *QUERY)[0], strict=True))
    assert first["memory.total"] == f"{mebibytes} MiB"
    assert first["compute_cap"] == model["compute_capability"]
    assert (
        first["ecc.mode.current"]
        == {True: "Enabled", False: "Disabled", None: "[N/A]"}[model["ecc"]]
    )
    assert not any("rror" in value for value in first.values())
    links = [line for line in smi("nvlink", "-s").stdout.splitlines() if "Link" in line]
    assert len(links) == 2 * (model["nvlink"] or {"links": 0})["links"]


@pytest.mark.parametrize(
    ("name", "gpus"),
    [
        ("V100-SXM2-16GB", 8),
        ("A100-SXM4-80GB", 8),
        ("T4", 4),
    ],
)
def test_the_matrix_is_the_machines(smi, name, gpus):
    pretended = smi.driver.has(name, gpus)
    assert matrix(smi) == pretended["topology"]
    assert smi("topo", "-p2p", "n").stdout.count("OK") >= sum(
        cell.startswith("NV") for row in pretended["topology"] for cell in row
    )


def test_faults_show_where_the_health_checks_look(smi):
    field = "ecc.errors.uncorrected.volatile.total"
    smi.driver.has("A100-SXM4-80GB", faults=[("ecc-double-bit", 1)])
    assert rows(smi, field) == [["0"], ["2"]]
    pending = smi("--query-remapped-rows=remapped_rows.pending", "--format=csv,noheader").stdout
    assert pending.split() == ["0", "1"]
    smi.driver.has("A100-SXM4-80GB", faults=[("requires-reset", 1)])
    assert rows(smi, field) == [["0"], ["[GPU requires reset]"]]
    smi.driver.has("A100-SXM4-80GB", faults=[("throttled", 1)])
    assert rows(smi, "clocks_throttle_reasons.hw_thermal_slowdown") == [["Not Active"], ["Active"]]
    smi.driver.has("A100-SXM4-80GB", gpus=8, faults=[("nvlink-down", 1)])
    assert smi("nvlink", "-s").stdout.count("<inactive>") == 1


def test_a_driver_that_does_not_fit_is_told_as_the_real_one_tells_it(smi):
    smi.driver.has("T4", module="570.10")
    done = smi(check=False)
    assert done.returncode == 18
    assert "Driver/library version mismatch" in done.stdout
    smi.driver.has("T4", module=None)
    done = smi(check=False)
    assert done.returncode == 9
    assert "couldn't communicate with the NVIDIA driver" in done.stdout
