"""Which driver and which CUDA follow from the GPUs of a cluster."""

import pytest

from gpubed.hardware.facts import Driver, Facts
from gpubed.hardware.nvidia_driver import NoDriver, Offer, Wanted, choose
from support import machines

pytestmark = pytest.mark.process

DEBIAN_12 = {
    "distribution": [Offer(470), Offer(535)],
    "nvidia": [Offer(570, True, True), Offer(580, True, True)],
}


DEBIAN_13 = {"distribution": [Offer(535), Offer(550)], "nvidia": [Offer(590, fabric_manager=True)]}


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
        (["t4"], None, 535, "distribution", 12),
        (["t4"], 13, 580, "nvidia", 13),
        (["a100-dgx"], 13, 580, "nvidia", 13),
        (["h100-hgx"], 13, 580, "nvidia", 13),
        (["b200"], None, 580, "nvidia", 13),
        (["p100", "t4"], None, 535, "distribution", 12),
        (["p100", "h100-hgx"], None, 580, "nvidia", 12),
        (["mixed"], None, 535, "distribution", 12),
    ],
)
def test_newest_branch_that_serves_all(nodes, names, cuda, branch, source, line):
    found = choose(cluster(nodes, *names), DEBIAN_12, Wanted(cuda=cuda))
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
        choose(cluster(nodes, *names), DEBIAN_12, Wanted(cuda=cuda))


def test_a_pinned_branch_is_taken(nodes):
    found = choose(cluster(nodes, "a100-dgx"), DEBIAN_12, Wanted(branch=570))
    assert (found.branch, found.source) == (570, "nvidia")


@pytest.mark.parametrize(("name", "pinned"), [("k80", 535), ("p100", 595), ("b200", 535)])
def test_a_pinned_branch_must_serve_the_nodes(nodes, name, pinned):
    with pytest.raises(NoDriver, match=f"driver branch {pinned} does not serve node-0"):
        choose(cluster(nodes, name), DEBIAN_12, Wanted(branch=pinned))


def test_one_node_cannot_have_both_kernel_modules(nodes):
    both = nodes["b200"].model_copy(update={"gpus": nodes["b200"].gpus + nodes["p100"].gpus})
    with pytest.raises(NoDriver, match="no kernel module serves all GPUs of node-0"):
        choose({"node-0": both}, DEBIAN_12)


def test_nvswitches_want_fabric_manager(nodes):
    found = choose(cluster(nodes, "a100-dgx", "t4", "h100-hgx"), DEBIAN_12)
    assert found.fabric_manager == ("node-0", "node-2")
    assert found.subnet_manager == ()


def test_fabric_manager_and_driver_come_from_one_source(nodes):
    """Debian has branch 535 for an HGX, and no Fabric Manager of that version."""
    assert choose(cluster(nodes, "h100-hgx"), DEBIAN_12, Wanted(cuda=12)).source == "nvidia"
    with pytest.raises(NoDriver, match="525 or newer with Fabric Manager, and there is"):
        choose(cluster(nodes, "h100-hgx"), {"distribution": DEBIAN_12["distribution"]})


@pytest.mark.parametrize("names", [["v100-dgx1"], ["v100-dgx1", "h100-hgx"]])
def test_where_all_offers_are_too_new_an_older_release_is_named(nodes, names):
    """Neither another source nor an older recipe would help: Volta's drivers end at 580."""
    there = cluster(nodes, *names)
    switches = {"nvswitches": nodes["h100-hgx"].nvswitches}
    there["node-0"] = there["node-0"].model_copy(update=switches)  # as in a DGX-2
    with pytest.raises(NoDriver, match=r"to 580 with Fabric Manager.* nvidia: 590") as refused:
        choose(there, DEBIAN_13, Wanted(cuda=12))
    assert "an image with Debian 12" in refused.value.hint
    assert "recipe" not in refused.value.hint
    assert ("a cluster of its own" in refused.value.hint) == (len(names) > 1)


@pytest.mark.parametrize(
    ("gpus", "bridges", "fabric"),
    [(8, (), True), (8, ("0000:05:00.0",), True), (2, ("0000:05:00.0",), True), (4, (), False)],
)
def test_a_baseboard_of_b200_wants_the_subnet_manager_too(nodes, gpus, bridges, fabric):
    board = nodes["b200"].model_copy(
        update={"gpus": nodes["b200"].gpus * gpus, "nvswitches": bridges}
    )
    found = choose({"node-0": board}, DEBIAN_12)
    assert found.fabric_manager == found.subnet_manager == (("node-0",) if fabric else ())


def test_the_subnet_manager_decides_on_the_source(nodes):
    """Ubuntu has branch 580 and its Fabric Manager, but not the NVLink subnet manager."""
    board = nodes["b200"].model_copy(update={"gpus": nodes["b200"].gpus * 8})
    ubuntu = {"distribution": [Offer(580, fabric_manager=True)], "nvidia": [Offer(580, True, True)]}
    assert choose(cluster(nodes, "h100-hgx"), ubuntu).source == "distribution"
    assert choose({"node-0": board}, ubuntu).source == "nvidia"
    with pytest.raises(NoDriver, match="Manager and the NVLink subnet manager, and there is"):
        choose({"node-0": board}, {"distribution": ubuntu["distribution"]})


def having(facts, installed, **more):
    return facts.model_copy(update={"driver": Driver(installed=installed, **more)})


RECIPE = Wanted(oldest="580.65.06", cuda=13)


@pytest.mark.parametrize("installed", ["580.65.06", "590.48.01", "580.126.20"])
def test_a_driver_that_serves_stays(nodes, installed):
    found = choose({"node-0": having(nodes["t4"], installed)}, DEBIAN_12, RECIPE)
    assert found.kept == {"node-0": installed}
    assert found.replaced == {}


@pytest.mark.parametrize(
    ("machine", "installed", "wanted", "because"),
    [
        ("t4", "535.261.03", RECIPE, "the recipe needs 580.65.06 or newer"),
        ("t4", "580.12.01", RECIPE, "the recipe needs 580.65.06 or newer"),
        ("v100-dgx1", "590.48.01", Wanted(cuda=12), "which does not serve its GPUs"),
        ("t4", "590.48.01", Wanted(branch=580), "branch 580 is asked for"),
        ("t4", "580.65.06", Wanted(version="580.82.07"), "580.82.07 is asked for"),
    ],
)
def test_a_driver_that_does_not_serve_is_replaced_with_the_reason(
    nodes, machine, installed, wanted, because
):
    found = choose({"node-0": having(nodes[machine], installed)}, DEBIAN_12, wanted)
    assert found.kept == {}
    assert because in found.replaced["node-0"]


def test_a_driver_whose_installation_did_not_end_does_not_serve(nodes):
    """Its module did not build, say: nothing is to be waited for from it."""
    broken = ("nvidia-kernel-dkms",)
    half = having(nodes["t4"], "580.70.99", unfinished=broken, loaded="580.65.06")
    found = choose({"node-0": half}, DEBIAN_12, RECIPE)
    assert found.kept == {}
    assert "580.70.99, whose installation did not end (nvidia-kernel" in found.replaced["node-0"]


@pytest.mark.parametrize("more", [{"loaded": "590.48.01"}, {"runfile": True}])
def test_a_driver_that_works_stays_whatever_apt_could_not_end(nodes, more):
    """For a kernel that does not run yet, say: the owner's driver is none of ours to replace."""
    there = having(nodes["t4"], "590.48.01", unfinished=("nvidia-dkms-590",), **more)
    assert choose({"node-0": there}, DEBIAN_12, RECIPE).kept == {"node-0": "590.48.01"}


@pytest.mark.parametrize(
    ("machine", "version", "opened", "because"),
    [
        ("b200", "580.82.07", False, "proprietary kernel module of driver 580.82.07"),
        ("b200", "580.82.07", True, None),
        ("b200", "580.82.07", None, None),
        ("v100-dgx1", "580.82.07", True, "needs the proprietary one"),
        ("v100-dgx1", "580.82.07", False, None),
        ("t4", "580.82.07", False, None),
        ("t4", "580.82.07", True, None),
    ],
)
def test_a_module_of_the_kind_that_does_not_serve_its_gpus_is_replaced(
    nodes, machine, version, opened, because
):
    """Nothing answers with it, and its version is the right one."""
    there = having(nodes[machine], version, loaded=version, open=opened)
    offers = {"nvidia": [Offer(580, fabric_manager=True, subnet_manager=True)]}
    found = choose({"node-0": there}, offers)
    assert (because or "") in found.replaced.get("node-0", "")
    assert bool(found.kept) == (because is None)
    assert found.open_module == (() if machine.startswith("v100") else ("node-0",))


@pytest.mark.parametrize(
    ("installed", "wanted", "kept"),
    [
        (None, RECIPE, {}),
        ("535.261.03", RECIPE, {}),
        ("590.48.01", RECIPE, {"node-0": "590.48.01"}),
        # The screen's card ends at 580, but nobody asked for it.
        ("590.48.01", Wanted(cuda=12), {"node-0": "590.48.01"}),
    ],
)
def test_an_older_card_for_a_screen_is_no_obstacle(nodes, installed, wanted, kept):
    both = having(nodes["t4"], installed)
    both = both.model_copy(update={"gpus": (*nodes["p100"].gpus[:1], *both.gpus)})
    found = choose({"node-0": both}, DEBIAN_12, wanted, {"node-0": 2})
    assert found.kept == kept
    assert kept or (found.branch, found.open_module) == (580, ("node-0",))
