"""What docs/contributing tells to add is put into a copy of gpubed, and used."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
import yaml

from support.cluster import BIN, ROOT, Cluster

PAGES = ROOT / "docs" / "contributing"
BROUGHT = ("src", "roles", "playbooks", "jobs", "templates", "stacks", "campaigns", "inventories")
_FILE = re.compile(r"^`([\w/.]+)`\n\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Copy:
    """A copy of gpubed with what the pages add; every call is a process of its own."""

    def __init__(self, root):
        self.root, self.project = root, root / "project"
        self.project.mkdir()
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(root / "src"),
            "GPUBED_ROOT": str(self.project),
            # Both engines are tested elsewhere; here it counts what was added.
            "GPUBED_ENGINE": "embedded",
        }

    def python(self, code, *words):
        command = [sys.executable, "-c", code, *words]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def gpubed(self, *words):
        return self.python("import sys; from gpubed.cli import main; sys.exit(main())", *words)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    root = tmp_path_factory.mktemp("gpubed")
    for name in BROUGHT:
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, root / name, ignore=ignored)
    for name in ("Pulumi.yaml", "ansible.cfg"):
        shutil.copy(ROOT / name, root / name)
    for page in PAGES.glob("*.md"):
        for name, content in _FILE.findall(page.read_text()):
            path = root / name
            assert not path.exists(), f"{page.name} overwrites {name}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
    made = Copy(root)
    Cluster(made.project, "lab")
    return made


def test_each_kind_has_a_page():
    listed = set(re.findall(r"\((\w+\.md)\)", (PAGES / "README.md").read_text()))
    assert listed == {path.name for path in PAGES.glob("*.md")} - {"README.md"}


def test_a_testbed(copy):
    copy.gpubed("init", "mine", "--backend", "paper")
    path = copy.project / "inventories" / "mine" / "cluster.yml"
    (folder := copy.project / "paper").mkdir()
    path.write_text(path.read_text().replace("FOLDER", str(folder)))
    copy.gpubed("check", "mine")
    copy.gpubed("up", "mine", "-y")
    assert {found.name for found in folder.iterdir()} == {"mine.node-0", "mine.node-1"}
    allocation = json.loads((copy.project / ".gpubed" / "mine" / "allocation.json").read_text())
    assert [node["name"] for node in allocation["nodes"]] == ["node-0", "node-1"]
    copy.gpubed("down", "mine", "-y")
    assert list(folder.iterdir()) == []


def test_a_role(copy):
    code = """
from gpubed.configuration import roles
from gpubed.core.paths import Project
from gpubed.testbeds.specification import load_plan
print(roles.variables(load_plan(Project.find().cluster("lab").spec))["greeting_text"])
"""
    assert copy.python(code) == "lab has 3 nodes\n"
    play = [
        {
            "hosts": "localhost",
            "connection": "local",
            "gather_facts": False,
            "roles": ["greeting"],
            "vars": {
                "greeting_text": "hello",
                "greeting_file": str(copy.project / "motd"),
                "ansible_python_interpreter": sys.executable,
            },
        }
    ]
    (copy.root / "play.yml").write_text(yaml.safe_dump(play))
    command = [str(BIN / "ansible-playbook"), "-i", "localhost,", "play.yml"]
    done = subprocess.run(
        command,
        cwd=copy.root,
        env=copy.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (copy.project / "motd").read_text() == "hello\n"


def test_a_job(copy):
    code = """
from gpubed.jobs import jobfile
print(jobfile.load("wordcount").values("wordcount", {}))
"""
    assert copy.python(code) == "{'words': 100}\n"


def test_a_launcher(copy):
    code = """
from gpubed.jobs import launchers
print(*launchers.names(), type(launchers.named("quiet")).__name__)
"""
    assert copy.python(code).split() == ["gpulab", "quiet", "slurm", "ssh", "QuietLauncher"]


def test_a_verb(copy):
    assert "count" in copy.gpubed("--help")
    assert json.loads(copy.gpubed("count", "lab", "--json"))["nodes"] == 3


def test_a_check(copy):
    """The session is a STAND-IN."""
    code = """
from gpubed.checks import stages
[check] = [function for function in stages.functions() if function.__name__ == "uptime"]
class Context:
    def on_each(self, function):
        from types import SimpleNamespace as Made
        node = Made(name="node-0")
        return [(node, function(node, Made(run=lambda _: Made(stdout="12.5 20.0"))))]
print(*check(Context()), sep="\\n")
"""
    assert "value=12.5" in copy.python(code)


def test_a_recipe(copy):
    [block] = re.findall(r"```console\n(.*?)```", (PAGES / "recipe.md").read_text(), re.DOTALL)
    for line in block.splitlines():
        words = line.removeprefix("$ ")
        if words.startswith("gpubed "):
            said = copy.gpubed(*words.split()[1:])
            assert "mine" in said
        else:
            subprocess.run(words, shell=True, cwd=copy.root, check=True)
