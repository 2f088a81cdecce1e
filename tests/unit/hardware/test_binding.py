"""Ranks are bound to the GPU of their number, its CPUs and its nearest HCA."""

import pytest

from gpubed.hardware.binding import bind, share
from gpubed.hardware.facts import Facts
from support import machines

pytestmark = pytest.mark.process


@pytest.fixture
def bindings(tmp_path):
    def of(name, ranks, **options):
        return bind(Facts.model_validate(machines.facts(name, tmp_path, **options)), ranks)

    return of


def test_dgx_1(bindings):
    found = bindings("v100-dgx1", 8)
    assert [b.gpu for b in found] == list(range(8))
    assert [b.cpus for b in found[:4]] == ["0-4,40-44", "5-9,45-49", "10-14,50-54", "15-19,55-59"]
    assert found[4].cpus == "20-24,60-64"
    assert [b.hca for b in found] == [f"mlx5_{i}" for i in (0, 0, 1, 1, 2, 2, 3, 3)]


def test_dgx_a100_spreads_ranks_over_equally_near_hcas(bindings):
    found = bindings("a100-dgx", 8)
    assert [b.hca for b in found] == [f"mlx5_{i}" for i in (0, 1, 2, 3, 6, 7, 8, 9)]
    assert found[0].cpus == "48-55,176-183"
    assert found[1].cpus == "56-63,184-191"


def test_more_ranks_than_gpus_share_them(bindings):
    found = bindings("t4", 4)
    assert [b.gpu for b in found] == [0, 1, 0, 1]
    assert [b.cpus for b in found] == ["0-3", "4-7", "8-11", "12-15"]


@pytest.mark.parametrize(("name", "driver"), [("none", True), ("t4", False)])
def test_without_a_gpu_that_answers_nothing_is_bound(bindings, name, driver):
    assert bindings(name, 2, driver=driver) == ()


def test_numa_nodes_decide_where_the_matrix_is_silent(tmp_path):
    found = Facts.model_validate(machines.facts("v100-dgx1", tmp_path))
    silent = found.model_copy(
        update={
            "gpus": [gpu.model_copy(update={"links": {}}) for gpu in found.gpus],
            "hcas": [
                hca.model_copy(update={"numa_node": 1 if hca.name == "mlx5_3" else 0})
                for hca in found.hcas
            ],
        }
    )
    assert {b.hca for b in bind(silent, 8)[4:]} == {"mlx5_3"}


def test_an_hca_without_a_link_is_not_used(tmp_path):
    found = Facts.model_validate(machines.facts("a100-dgx", tmp_path))
    ports = [p.model_copy(update={"state": "DOWN"}) for p in found.hcas[0].ports]
    down = [found.hcas[0].model_copy(update={"ports": ports}), *found.hcas[1:]]
    assert [b.hca for b in bind(found.model_copy(update={"hcas": down}), 2)] == ["mlx5_1"] * 2


@pytest.mark.parametrize(
    ("cpus", "part", "parts", "mine"),
    [
        ("0-19,40-59", 0, 4, "0-4,40-44"),
        ("0-19,40-59", 3, 4, "15-19,55-59"),
        ("0-3", 1, 4, "1"),
        ("0-3", 1, 8, "0-3"),
        ("0,2", 0, 2, "0,2"),
        ("5", 0, 1, "5"),
        ("", 0, 2, ""),
    ],
)
def test_shares_of_a_cpu_list(cpus, part, parts, mine):
    assert share(cpus, part, parts) == mine
