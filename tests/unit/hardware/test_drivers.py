"""Which driver and which CUDA follow from the GPUs of a cluster."""

import pytest

from gpubed.hardware.drivers import NoDriver, choose, newest_cuda
from gpubed.hardware.facts import Facts
from support import machines

DEBIAN_12 = {"distribution": [470, 535], "nvidia": [570, 580]}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """Recorded machines before they have a driver, which is when it is chosen."""
    folder = tmp_path_factory.mktemp("machines")
    return {
        name: Facts.model_validate(machines.facts(name, folder / name, driver=False))
        for name in machines.NAMES
    }


def cluster(nodes, *names):
    return {f"node-{i}": nodes[name] for i, name in enumerate(names)}


@pytest.mark.parametrize(
    ("names", "cuda", "branch", "source", "line"),
    [
        (["k80"], None, 470, "distribution", 11),
        (["p100"], None, 535, "distribution", 12),
        (["p100"], 12, 535, "distribution", 12),
        (["v100-dgx1"], 12, 535, "distribution", 12),
        (["t4"], None, 535, "distribution", 12),
        (["t4"], 13, 580, "nvidia", 13),
        (["a100-dgx"], 13, 580, "nvidia", 13),
        (["h100-hgx"], 13, 580, "nvidia", 13),
        (["b200"], None, 580, "nvidia", 13),
        (["k80", "t4"], None, 470, "distribution", 11),
        (["p100", "h100-hgx"], None, 535, "distribution", 12),
        (["v100-dgx1", "b200"], None, 580, "nvidia", 12),
        (["mixed"], None, 535, "distribution", 12),
    ],
)
def test_newest_branch_that_serves_all(nodes, names, cuda, branch, source, line):
    found = choose(cluster(nodes, *names), DEBIAN_12, cuda=cuda)
    assert (found.branch, found.source, found.cuda) == (branch, source, line)


@pytest.mark.parametrize(
    ("names", "cuda", "says"),
    [
        (["k80", "b200"], None, r"node-0 \(Kepler\) is 470.*node-1 \(Blackwell\) is 570"),
        (["k80", "h100-hgx"], None, r"node-0 \(Kepler\) is 470.*node-1 \(Hopper\) is 525"),
        (["t4", "v100-dgx1"], 13, r"CUDA 13 has no code for node-1 \(Volta\)"),
        (["k80"], 12, r"CUDA 12 has no code for node-0 \(Kepler\)"),
        (["t4", "none"], None, "no NVIDIA GPU is on the PCI bus of node-1"),
        (["unknown"], None, "node-0 has a GPU that gpubed does not know: 10de:fff0"),
    ],
)
def test_what_no_driver_serves_names_the_nodes(nodes, names, cuda, says):
    with pytest.raises(NoDriver, match=says):
        choose(cluster(nodes, *names), DEBIAN_12, cuda=cuda)


def test_a_branch_that_nobody_offers_is_named(nodes):
    with pytest.raises(
        NoDriver, match="need driver branch 570 or newer, and there is distribution"
    ):
        choose(cluster(nodes, "b200"), {"distribution": [470, 535]})


def test_a_pinned_branch_is_taken(nodes):
    found = choose(cluster(nodes, "a100-dgx"), DEBIAN_12, pinned=570)
    assert (found.branch, found.source) == (570, "nvidia")


def test_a_pinned_branch_that_no_source_lists_comes_from_the_last(nodes):
    assert choose(cluster(nodes, "a100-dgx"), DEBIAN_12, pinned=595).source == "nvidia"


@pytest.mark.parametrize(("name", "pinned"), [("k80", 535), ("p100", 595), ("b200", 535)])
def test_a_pinned_branch_must_serve_the_nodes(nodes, name, pinned):
    with pytest.raises(NoDriver, match=f"driver branch {pinned} does not serve node-0"):
        choose(cluster(nodes, name), DEBIAN_12, pinned=pinned)


def test_a_pinned_branch_serves_unknown_gpus(nodes):
    assert choose(cluster(nodes, "unknown"), DEBIAN_12, pinned=580).open_module == ("node-0",)


def test_kernel_modules_are_each_nodes_own(nodes):
    """Open from Turing on where the branch prefers it; Pascal and Volta only have the other."""
    found = choose(cluster(nodes, "p100", "t4", "v100-dgx1", "b200"), DEBIAN_12)
    assert found.branch == 580
    assert found.open_module == ("node-1", "node-3")


def test_older_branches_keep_the_proprietary_module(nodes):
    assert choose(cluster(nodes, "a100-dgx"), DEBIAN_12).open_module == ()


def test_one_node_cannot_have_both_kernel_modules(nodes):
    both = nodes["b200"].model_copy(update={"gpus": nodes["b200"].gpus + nodes["p100"].gpus})
    with pytest.raises(NoDriver, match="no kernel module serves all GPUs of node-0"):
        choose({"node-0": both}, DEBIAN_12)


def test_nvswitches_want_fabric_manager(nodes):
    found = choose(cluster(nodes, "a100-dgx", "t4", "h100-hgx"), DEBIAN_12)
    assert found.fabric_manager == ("node-0", "node-2")


@pytest.mark.parametrize(
    ("generations", "branch", "line"),
    [
        ({"Hopper"}, 580, 13),
        ({"Hopper"}, 575, 12),
        ({"Pascal"}, 580, 12),
        ({"Kepler"}, 470, 11),
        ({"Hopper", "Volta"}, 580, 12),
    ],
)
def test_newest_cuda(generations, branch, line):
    assert newest_cuda(generations, branch) == line


def test_no_cuda_runs_on_a_very_old_branch():
    with pytest.raises(NoDriver, match="driver branch 390 runs no CUDA"):
        newest_cuda({"Kepler"}, 390)
