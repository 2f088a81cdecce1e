"""GPUs that cannot be had are refused before anything is made, with a way out.

What a specification alone tells, `check` refuses with its line; what only machines tell,
`plan` says. STAND-INS: Docker's runtimes, and what a host says when it is looked at.
"""

import json
from pathlib import Path

import pytest

from gpubed.backends.local import spec_checks
from gpubed.backends.static.host import Found
from gpubed.core.errors import GpubedError
from gpubed.core.paths import Project
from gpubed.testbeds import registry, specification
from support.specs import BACKENDS

LOCAL = "{type: local}"
STATIC = "{type: static, user: me, hosts: {node: [{address: 192.0.2.1}]}}"
# backend, recipe, the node group's GPUs; the line and what is said there.
REFUSED = {
    "a recipe without GPUs": (STATIC, "cpu", "gpus: 1", 5, "allowed: cuda12, cuda13"),
    "more than any node may have": (STATIC, "cuda13", "gpus: 17", 3, "16"),
    "fewer than none": (STATIC, "cuda13", "gpus: -1", 3, "0"),
    "half a GPU": (STATIC, "cuda13", "gpus: 0.5", 3, "whole number"),
    "a truth for a number": (STATIC, "cuda13", "gpus: yes", 3, "whole number"),
    "a truth for the number pretended": (
        LOCAL,
        "cuda13",
        "gpus: 1, simulate: {model: T4, gpus: true}",
        3,
        "whole number",
    ),
    "no end of GPUs": (STATIC, "cuda13", "gpus: .inf", 3, "must be a finite number"),
    "a number for a model": (
        LOCAL,
        "cuda13",
        "gpus: 1, simulate: 4090",
        3,
        "the name of a GPU model (for example A100-SXM4-80GB)",
    ),
    "a number for a recipe": (STATIC, "13", "gpus: 1", 5, "there are: cpu, cuda12, cuda13"),
    "more than this machine can give": (LOCAL, "cuda13", "gpus: 2", 3, "can give 1 (GPUs: 1"),
    "pretending elsewhere": (
        STATIC,
        "cuda13",
        "gpus: 1, simulate: T4",
        3,
        "rehearse with backend local",
    ),
    "pretending without asking": (LOCAL, "cuda13", "simulate: T4", 3, "gpus is 0"),
    "fewer pretended than asked for": (
        LOCAL,
        "cuda13",
        "gpus: 4, simulate: {model: T4, gpus: 2}",
        3,
        "simulate.gpus is 2",
    ),
    "a model that nobody knows": (
        LOCAL,
        "cuda13",
        "gpus: 1, simulate: A100-SXM4-80",
        3,
        "did you mean 'A100-SXM4-80GB'",
    ),
    "a model that the recipe has no code for": (
        LOCAL,
        "cuda13",
        "gpus: 1, simulate: V100-SXM2-16GB",
        3,
        "recipe: cuda12",
    ),
    "a model that no recipe serves": (
        LOCAL,
        "cuda12",
        "gpus: 1, simulate: K80",
        3,
        "another GPU model",
    ),
    "more than the model's machine holds": (
        LOCAL,
        "cuda12",
        "gpus: 16, simulate: V100-SXM2-16GB",
        3,
        "8 at most",
    ),
    "a model without MIG": (
        LOCAL,
        "cuda12",
        "gpus: {per_node: 1, mig: 1g.10gb}, simulate: V100-SXM2-16GB",
        3,
        "cannot be cut: it has no MIG (shards: N",
    ),
    "a profile that the model has not": (
        LOCAL,
        "cuda13",
        "gpus: {per_node: 1, mig: 1g.5gb}, simulate: A100-SXM4-80GB",
        3,
        "has no such MIG profile (1g.10gb, 1g.20gb",
    ),
    "no profile": (STATIC, "cuda13", "gpus: {per_node: 1, mig: 7}", 3, "text"),
    "cut and shared": (
        STATIC,
        "cuda13",
        "gpus: {per_node: 1, mig: 1g.10gb, shards: 2}",
        3,
        "exclude each other",
    ),
    "parts of none": (STATIC, "cuda13", "gpus: {per_node: 0, shards: 2}", 3, "per_node is 0"),
    "generations without a common driver": (
        LOCAL,
        "cuda12",
        "gpus: 1, simulate: K80}\n  - {name: other, count: 1, gpus: 1, simulate: B200-SXM6-180GB",
        4,
        "no driver serves all nodes",
    ),
    "generations without a common driver in the image's sources": (
        LOCAL,
        "cuda12",
        "gpus: 1, image: debian-13, simulate: V100-SXM2-32GB}\n"
        "  - {name: other, count: 1, gpus: 8, image: debian-13, simulate: H100-SXM5-80GB",
        4,
        "and there is distribution: none; nvidia: 590 (use an image with Debian 12",
    ),
}


@pytest.fixture(autouse=True)
def one_gpu(monkeypatch):
    monkeypatch.setattr(spec_checks, "gpus", lambda: 1)
    monkeypatch.setattr(spec_checks, "has_gpu_runtime", lambda: True)


@pytest.fixture
def write(tmp_path, monkeypatch):
    def written(backend, recipe, gpus):
        path = tmp_path / "inventories" / "lab" / "cluster.yml"
        path.parent.mkdir(parents=True)
        path.write_text(
            f"backend: {backend}\nnodes:\n  - {{count: 1, {gpus}}}\n"
            f"version: 1\nrecipe: {recipe}\nnetworks: {{control: {{subnet: 192.0.2.0/24}}}}\n"
        )
        return path

    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    return written


@pytest.mark.parametrize("case", REFUSED)
def test_check_refuses(write, case):
    backend, recipe, gpus, line, words = REFUSED[case]
    found, errors = specification.check(write(backend, recipe, gpus))
    assert found is None
    said = [(error.line, f"{error.message} ({error.allowed})") for error in errors]
    assert any(at == line and words in text for at, text in said), said


@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_a_recipe_without_gpus_is_refused_on_all_backends(write, backend):
    _, errors = specification.check(write(json.dumps(BACKENDS[backend]), "cpu", "gpus: 1"))
    assert [(e.line, e.allowed) for e in errors if e.path == "recipe"] == [
        (5, "allowed: cuda12, cuda13")
    ]


@pytest.mark.parametrize("backend", sorted(BACKENDS))
@pytest.mark.parametrize("part", ["mig: 1g.10gb", "shards: 4"])
def test_parts_of_gpus_are_refused_where_no_slurm_of_the_cluster_gives_them(write, backend, part):
    path = write(json.dumps(BACKENDS[backend]), "cuda13", f"gpus: {{per_node: 1, {part}}}")
    place = f"nodes.0.gpus.{part.split(':')[0]}"
    assert place in [error.path for error in specification.check(path)[1]]
    path.write_text(path.read_text() + "services: {slurm: {}}\n")
    refused = place in [error.path for error in specification.check(path)[1]]
    assert refused == (backend in ("gpulab", "slurm"))


def test_gpus_that_are_whole_are_written_as_a_number(write):
    spec = specification.load(write(STATIC, "cuda13", "gpus: {per_node: 2}"))
    assert spec.model_dump(mode="json")["nodes"][0]["gpus"] == 2


@pytest.mark.parametrize(
    ("recipe", "gpus", "ids", "said"),
    [
        ("cuda13", 2, "20b2 20b2", ""),
        ("cuda13", 1, "20b2 20b2", ""),
        ("cuda13", 2, "128b 20b2 20b2", ""),  # an older one is for a screen
        ("cuda13", 2, "20b2", "node-0 (192.0.2.1) has 1 NVIDIA GPUs, 2 are asked for"),
        ("cuda13", 1, "1db5", "no code for GPUs of compute capability 7.0; recipe cuda12 has"),
        ("cuda12", 1, "102d", "compute capability 3.7; no recipe has"),
        ("cuda13", 2, "1db5 20b2", "7.0"),
        ("cuda13", 1, None, ""),  # `doctor` names a host that does not answer
        ("cpu", 0, None, ""),
    ],
)
def test_a_plan_looks_at_own_hosts_that_are_to_have_gpus(
    write, monkeypatch, recipe, gpus, ids, said
):
    def look(*_):
        if ids is None:
            raise GpubedError("it does not answer")
        required = (n for n, field in Found.model_fields.items() if field.is_required())
        known = dict.fromkeys(required, "")
        known |= {"sudo": True, "systemd": True, "clock": 0, "free_gib": 100}
        known |= {"system": "Debian", "image": "debian-12", "user": "me", "python": "3.11.2"}
        known |= {"ports": "tcp:22"}
        addresses = {"addresses": "192.0.2.1", "own_address": "192.0.2.1"}
        return Found(**{**known, **addresses, "number": "1000", "gpu_ids": ids})

    own = registry.bound("static", Project(Path("/nowhere")).cluster("lab"))
    monkeypatch.setattr(own, "_on", look)
    plan = specification.load_plan(write(STATIC, recipe, f"gpus: {gpus}"))
    findings = [finding for finding in own.fits(plan) if not finding.ok]
    assert len(findings) == bool(said)
    assert all(said in finding.message for finding in findings)


def test_a_path_of_the_login_is_explained(write):
    path = write(
        "{type: virtualwall, project: p, login: x.pem, aggregate: {url: 'https://a/b', "
        "urn: 'urn:publicid:IDN+a+authority+cm'}, authority: {slices: 'https://a/geni-sa/2', "
        "members: 'https://a/geni-ma/2'}}",
        "cuda13",
        "gpus: 1",
    )
    said = [str(error) for error in specification.check(path)[1]]
    assert any("backend.login: must be a path that begins with / or ~/" in s for s in said)
    assert "x.pem" not in "".join(said)
