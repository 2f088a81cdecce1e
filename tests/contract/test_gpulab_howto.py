"""Every command of docs/how-to/gpulab.md, in its order, against the test server."""

import re
from pathlib import Path

import pytest
import yaml

from support import terminal
from support.gpulab.site import Site

pytestmark = pytest.mark.quick

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "gpulab.md").read_text()
BLOCK = re.compile(r"```(yaml|console)\n(.*?)```", re.DOTALL)


@pytest.fixture
def site(tmp_path):
    with Site(tmp_path) as made:
        yield made


def merged(spec, change):
    return {**spec, **change, "backend": {**spec["backend"], **change.get("backend", {})}}


@pytest.mark.parametrize("columns", [80, 200, None])
def test_every_command_of_the_page_does_what_it_says(site, columns):
    path = site.project / "inventories" / "gl" / "cluster.yml"
    path.unlink()
    training = site.folder / "my-training"
    training.mkdir()
    (training / "train.py").write_text("")
    for name in ("python", "torchrun"):  # stand-ins for those of an image
        program = site.folder / "bin" / name
        program.write_text('#!/bin/sh\nexec python3 "$@"\n')
        program.chmod(0o755)
    done, here = [], site.folder
    for kind, text in BLOCK.findall(PAGE):
        if kind == "yaml":
            site.write("gl", merged(yaml.safe_load(path.read_text()), yaml.safe_load(text)))
            continue
        for line in text.splitlines():
            if line == "$ cd ~/my-training":
                here = training
                continue
            words = line.removeprefix("$ gpubed ").split()
            said = terminal.run(
                site.command(words), columns=columns, cwd=here, env=site.environment
            )
            assert said.code == 0, f"{line}\n{said.text}"
            assert said.faults() == [] or "--json" in words, f"{line}\n{said.text}"
            done.append((line, " ".join(said.text.split())))
            if words[0] == "init":
                # The user edits the template; only what is of this test's site differs.
                template, own = yaml.safe_load(path.read_text()), site.spec()
                assert set(own["backend"]) <= {"ca_bundle", "master", *template["backend"]}
                template["backend"] |= own["backend"]
                site.write("gl", {**template, "storage": own["storage"]})
    said = dict(done)
    assert "1 node(s)" in said["$ gpubed check gl"]
    assert "FAIL" not in said["$ gpubed doctor gl"]
    assert "Tesla V100" in said["$ gpubed resources gl"]
    assert "digits: ok, world size 10" in said["$ gpubed run gl digits"]
    assert "FINISHED" in said["$ gpubed status gl"]
    assert "train: ok, world size 10" in said["$ gpubed run gl -- torchrun train.py"]
    trials = said["$ gpubed run gl digits --set seed=7"]
    assert "digits: ok, 10 of 10 trials of world size 1 each" in trials
    assert "value = 115 ± 22 (95 %; 70 … 160, n = 10)" in trials
    assert '"statistics"' in said["$ gpubed run gl digits --json"]
    assert len(done) == 14


def test_of_the_templates_specification_only_the_project_is_missing(site):
    site.call("init", "fresh", "--backend", "gpulab")
    [error] = site.json("check", "fresh", rc=2)["errors"]
    assert error["path"] == "backend.project"
