"""A cluster in a user's own Pulumi program: the one of docs/how-to/pulumi.md, with the real CLI."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from support.cluster import BIN, ROOT, labelled, unique

pytestmark = [
    pytest.mark.live,
    pytest.mark.docker,
    pytest.mark.skipif(not shutil.which("pulumi"), reason="the Pulumi CLI is not on PATH"),
]
PAGE = (ROOT / "docs/how-to/pulumi.md").read_text()
FILES = dict(re.findall(r"(?ms)^`([\w./]+)`[^\n]*\n\n```\w+\n(.*?)^```", PAGE))
COMMANDS = re.findall(r"(?m)^\$ (.*)", PAGE)
BY_API = PAGE.partition("## With the Automation API")[2].partition("```python\n")[2].split("```")[0]


class Program:
    """The page's program in a folder of its own; its cluster has a name of this test's."""

    def __init__(self, folder):
        self.folder, self.name = folder / "program", unique("own")
        self.variables = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PULUMI_BACKEND_URL": (folder / "states").as_uri(),
            "PULUMI_CONFIG_PASSPHRASE": "the user's own",
            "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
            "PULUMI_SKIP_UPDATE_CHECK": "true",
        }
        (folder / "states").mkdir()
        for path, text in FILES.items():
            self.write(path, text)

    def write(self, path, text):
        """Write a file; where the page says inventories/lab, the test's cluster is meant."""
        path = self.folder / path.replace("inventories/lab/", f"inventories/{self.name}/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("inventories/lab/", f"inventories/{self.name}/"))

    def run(self, *words, rc=0):
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert rc in (None, done.returncode), f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout if rc == 0 else done.stdout + done.stderr

    def pulumi(self, line):
        """Run a command of the page; where it would ask, it is answered."""
        assert line in COMMANDS
        asks = ["--yes", "--skip-preview"] if line in ("pulumi up", "pulumi destroy") else []
        return self.run(*shlex.split(line), *asks)

    @property
    def outputs(self):
        return json.loads(self.run("pulumi", "stack", "output", "--json"))

    def expect_no_change(self):
        self.run("pulumi", "preview", "--expect-no-changes")


@pytest.fixture
def program(tmp_path):
    made = Program(tmp_path)
    try:
        yield made
    finally:
        made.run("pulumi", "destroy", "--yes", "--skip-preview", rc=None)
        for name in {path.name for path in made.folder.glob("inventories/*")}:
            made.run("gpubed", "down", name, "-y", rc=None)


def hosts(program):
    return (program.folder / "hosts").read_text()


def test_a_cluster_and_the_users_own_resource_go_up_change_and_go(program):
    program.pulumi("pulumi stack init dev")
    program.pulumi("pulumi up")
    found = program.outputs
    head = found["head_address"]
    assert found["node_addresses"] == {"node-0": head}
    assert (found["state"], found.get("jupyterlab_url")) == ("allocated", None)
    assert hosts(program) == f"{head} lab.example.org\n"
    said = program.pulumi("pulumi stack output ssh_command")
    assert program.run(*shlex.split(said), "hostname").strip() == "node-0"
    program.expect_no_change()

    status = json.loads(program.run("gpubed", "status", program.name, "--json"))
    assert [node["state"] for node in status["nodes"]] == ["ready"]
    for verb in ("up", "plan", "down", "env", "audit"):
        assert "runs your own Pulumi program" in program.run("gpubed", verb, program.name, rc=2)
    assert not (program.folder / "stacks").exists()

    before = {one for one in labelled(program.name) if one.startswith("container")}
    spec = FILES["inventories/lab/cluster.yml"]
    program.write("inventories/lab/cluster.yml", spec.replace("count: 1", "count: 2"))
    other = unique("more")
    program.write(f"inventories/{other}/cluster.yml", spec)
    text = FILES["__main__.py"].replace("lab.example.org", "head.example.org")
    program.write("__main__.py", f"{text}\nCluster('{other}')\n")
    program.pulumi("pulumi up")
    assert set(program.outputs["node_addresses"]) == {"node-0", "node-1"}
    assert program.outputs["uuid"] == found["uuid"]
    assert hosts(program) == f"{head} head.example.org\n"
    assert before < set(labelled(program.name)), "the first node stays"
    assert [one for one in labelled(other) if one.startswith("container")], "beside the first"
    program.expect_no_change()

    program.pulumi("pulumi destroy")
    assert not (program.folder / "hosts").exists()
    for name in (program.name, other):
        [left] = labelled(name)
        assert left.startswith("volume "), "data stays until gpubed down"
        assert left.split()[1] in program.run("gpubed", "audit", name)
        program.run("gpubed", "down", name, "-y")
        assert labelled(name) == []


def test_the_automation_api_does_the_same(program):
    assert "destroy" in BY_API
    made, _, _ = BY_API.partition("stack.destroy")
    said = program.run(sys.executable, "-c", made)
    assert hosts(program).split()[0] in said
    assert [one for one in labelled(program.name) if one.startswith("container")]
    program.run(sys.executable, "-c", BY_API)
    assert not (program.folder / "hosts").exists()
    assert [one.split()[0] for one in labelled(program.name)] == ["volume"]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("inventories/none/cluster.yml", "the file does not exist"),
        ("lab.yml", "is not inventories/<cluster>/cluster.yml of"),
    ],
)
def test_a_specification_that_is_not_there_ends_in_a_sentence(program, spec, says):
    program.write("__main__.py", FILES["__main__.py"].replace("inventories/lab/cluster.yml", spec))
    program.pulumi("pulumi stack init dev")
    said = program.run("pulumi", "preview", rc=None)
    assert says in " ".join(said.split())
    assert "Traceback" not in said
