"""States that a former version wrote: nothing of them deletes data, or what is in use."""

import json

import pytest

from gpubed.engines import former_state

pytestmark = pytest.mark.quick

VOLUME = {"name": "data", "props": {"size": 1}}


def change(scenes, *changes):
    """Writes what a former version would have written."""
    document = json.loads(scenes.state_file.read_text())
    latest = document["checkpoint"]["latest"]
    for each in changes:
        each(latest["resources"])
    scenes.state_file.write_text(json.dumps(document))


def as_volume(resources):
    for resource in resources:
        if resource["urn"].endswith("::data"):
            resource["type"] = "pulumi-python:dynamic/gpubed:Volume"


def test_volumes_are_retained_whatever_the_state_says(scenes):
    scenes.up(VOLUME)
    engine = scenes.engine()
    change(scenes, as_volume)
    engine.edit(former_state.mended)
    (volume,) = [s for s in scenes.state() if s["urn"].endswith("::data")]
    assert volume["retainOnDelete"]
    scenes.set()
    assert scenes.engine().destroy().changes["delete"] == 2
    assert scenes.calls("delete") == []


def test_a_state_of_this_version_is_not_written(scenes):
    scenes.up({**VOLUME, "opts": {"retain_on_delete": True}})
    before = scenes.state_file.stat().st_mtime_ns
    scenes.engine().edit(former_state.mended)
    assert scenes.state_file.stat().st_mtime_ns == before


@pytest.mark.parametrize("head", [{"version": 3}, {"version": 4, "features": ["taint"]}])
def test_the_rest_of_the_file_stays_as_it_was(scenes, head):
    scenes.up(VOLUME)
    change(scenes, as_volume)
    document = {**json.loads(scenes.state_file.read_text()), **head}
    scenes.state_file.write_text(json.dumps(document))
    scenes.engine().edit(former_state.mended)
    document["checkpoint"]["latest"]["resources"][-1]["retainOnDelete"] = True
    assert json.loads(scenes.state_file.read_text()) == document
