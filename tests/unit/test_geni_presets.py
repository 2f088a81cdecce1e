"""The testbeds that are known by name: their data file, and the table of the how-to page."""

import pytest

from gpubed.backends.virtualwall.backend import VirtualWallBackend
from gpubed.backends.virtualwall.config import Config, presets
from gpubed.spec import clusterspec
from support.cluster import ROOT

PAGE = (ROOT / "docs/how-to/geni.md").read_text()
OWN = {"type": "geni", "project": "p", "login": "~/cloudlab.pem"}


def config(name, **keys):
    return Config.model_validate({**OWN, "testbed": name, **keys})


def row(name):
    found = config(name)
    gpus = ", ".join(f"{type_}: {count}" for type_, count in found.gpus.items())
    gpus = "by the type's name" if name.startswith("virtualwall") else gpus
    cells = (f"`{name}`", gpus, ", ".join(found.images), "yes" if found.nat else "no")
    return "| " + " | ".join(cells).replace("|  |", "| |") + " |"


@pytest.mark.parametrize("name", presets())
def test_the_page_says_what_the_file_has(name):
    assert row(name) in PAGE.splitlines()
    assert PAGE.count(f"\n| `{name}` |") == 1


def test_the_page_lists_no_other_testbed_and_says_that_none_was_tried():
    table = PAGE.partition("## Testbeds by name")[2].partition("\n\nA preset")[0]
    assert table.count("\n| `") == len(presets()) + 1  # and its head
    assert "untested there, all of them" in PAGE


@pytest.mark.parametrize("name", presets())
def test_a_bastion_goes_with_nat_and_images_are_those_that_roles_take(name):
    found = config(name)
    assert bool(found.bastion) == found.nat
    assert set(found.images) <= set(clusterspec.systems())
    assert found.aggregate.url.endswith(":12369/protogeni/xmlrpc/am/3.0")
    assert found.authority.slices.endswith("/geni-sa/2")
    assert found.authority.members.endswith("/geni-ma/2")


def test_what_is_written_wins_key_by_key():
    found = config(
        "cloudlab-wisconsin",
        aggregate={"url": "https://127.0.0.1/am"},
        images={"ubuntu-22.04": "urn"},
        gpus={"d7525": 2, "g893": 8},
        bastion={"host": "door.example"},
        extra_space=None,
    )
    assert found.aggregate.url == "https://127.0.0.1/am"
    assert found.aggregate.urn == "urn:publicid:IDN+wisc.cloudlab.us+authority+cm"
    assert (found.images["ubuntu-22.04"], len(found.images)) == ("urn", 2)
    assert (found.gpus["d7525"], found.gpus["d8545"], found.gpus["g893"]) == (2, 4, 8)
    assert (found.bastion.host, found.extra_space) == ("door.example", None)
    assert config("virtualwall-2", bastion=None).bastion is None


def test_a_state_has_the_options_and_not_the_name_of_the_testbed():
    """A later version may know other testbeds by name."""
    kept = config("emulab").model_dump(mode="json", exclude_none=True)
    assert "testbed" not in kept
    assert kept["type"] == VirtualWallBackend().name
    assert Config.model_validate(kept).model_dump() == config("emulab").model_dump()
