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

pytestmark = pytest.mark.process

PAGES = ROOT / "docs" / "contributing"
BROUGHT = (
    *("src", "roles", "playbooks", "jobs", "templates", "stacks", "campaigns", "inventories"),
    *("tests", "docs", ".config"),
)
_FILE = re.compile(r"^`([\w/.]+)`\n\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)


GPUBED = "import sys; from gpubed.cli import main; sys.exit(main())"


class Copy:
    """A copy of gpubed with what the pages add; every call is a process of its own."""

    def __init__(self, root):
        self.root, self.project, self.added = root, root / "project", list[str]()
        self.project.mkdir()
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(root / "src"),
            "GPUBED_ROOT": str(self.project),
            # Both engines are tested elsewhere; here it counts what was added.
            "GPUBED_ENGINE": "embedded",
        }

    def called(self, code, *words):
        command = [sys.executable, "-c", code, *words]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False
        )

    def python(self, code, *words):
        done = self.called(code, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def gpubed(self, *words):
        return self.python(GPUBED, *words)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    root = tmp_path_factory.mktemp("gpubed")
    for name in BROUGHT:
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, root / name, ignore=ignored)
    for name in ("Pulumi.yaml", "ansible.cfg", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, root / name)
    made = Copy(root)
    for page in PAGES.glob("*.md"):
        for name, content in _FILE.findall(page.read_text()):
            path = root / name
            assert not path.exists(), f"{page.name} overwrites {name}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
            made.added.append(name)
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
    code = """
from gpubed.core.paths import Project
from gpubed.engines.stack import Stack
print(*Stack(Project.find().cluster("mine"), "embedded").outputs().items(), sep="\\n")
"""
    told = copy.python(code)
    assert "('state', 'allocated')\n" in told
    assert "('head', 'node-0')\n" in told
    assert f"('ssh_command', 'ssh -F {copy.project}/.gpubed/mine/ssh_config node-0')\n" in told
    assert json.loads(copy.gpubed("plan", "mine", "--json"))["changes"] == []
    _edited_specification_loses_no_node(copy, path, folder)
    copy.gpubed("down", "mine", "-y")
    assert list(folder.iterdir()) == []


def _edited_specification_loses_no_node(copy, path, folder):
    """Also where the state that knew of them is lost: `down` asks no other folder in its place."""
    shutil.rmtree(copy.project / ".gpubed" / "pulumi")
    (elsewhere := copy.project / "elsewhere").mkdir()
    written = path.read_text()
    path.write_text(written.replace(str(folder), str(elsewhere)))
    done = copy.called(GPUBED, "down", "mine", "-y")
    assert done.returncode != 0, done.stdout
    assert f"is not the one that it was made on: the folder {folder}" in done.stderr
    assert {found.name for found in folder.iterdir()} == {"mine.node-0", "mine.node-1"}
    assert list((copy.project / ".gpubed" / "mine" / "specifications").glob("paper-*.yml"))
    path.write_text(written)


def test_a_role(copy):
    code = """
from gpubed.configuration import roles
from gpubed.core.paths import Project
from gpubed.testbeds.specification import load_plan
print(roles.variables(load_plan(Project.find().cluster("lab").spec))["greeting_text"])
"""
    assert copy.python(code) == "lab has 3 nodes\n"
    said, tasks = copy.project / "greeting.sh", copy.root / "roles/greeting/tasks/greet.yml"
    tasks.write_text(tasks.read_text().replace("/etc/profile.d/gpubed-greeting.sh", str(said)))
    given = {
        "greeting_text": "hello",
        "gpubed_uuid": "0f0e",
        "gpubed_node_id": "node",
        "gpubed_state_dir": str(copy.project / "state"),
        "gpubed_fingerprints": {"greeting": "of this version"},
        "ansible_python_interpreter": sys.executable,
    }
    _play(copy, greeting_enabled=True, **given)
    assert said.read_text() == "echo hello\n"
    record = json.loads((copy.project / "state/applied/node.json").read_text())
    assert record == {"greeting": "of this version"}


def _play(copy, **variables):
    play = {"hosts": "localhost", "connection": "local", "gather_facts": False}
    (copy.root / "play.yml").write_text(yaml.safe_dump([{**play, "roles": ["greeting"]}]))
    given = ["-e", json.dumps(variables)]  # these win over the role's own: nothing here is changed
    command = [str(BIN / "ansible-playbook"), "-i", "localhost,", "play.yml", *given]
    done = subprocess.run(
        command,
        cwd=copy.root,
        env=copy.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_job(copy):
    code = """
from gpubed.jobs import jobfile
print(jobfile.load("wordcount").values("wordcount", {}))
"""
    assert copy.python(code) == "{'words': 100}\n"


def test_a_campaign(copy):
    code = """
from gpubed.campaigns import file, matrix
from gpubed.core.paths import Project
from gpubed.jobs import jobfile
source = file.load("epochs", Project.find())
print(*(point.id for point in matrix.expand(source, jobfile.load("digits"))), sep="\\n")
"""
    assert len(copy.python(code).splitlines()) == 4


def test_a_launcher(copy):
    code = """
from gpubed.jobs import launchers
print(*launchers.names(), type(launchers.named("quiet")).__name__)
"""
    *names, made = copy.python(code).split()
    assert "quiet" in names
    assert made == "QuietLauncher"


def test_a_verb(copy):
    _, _, cluster = copy.gpubed("--help").partition("\nCluster:")
    assert "  count  " in cluster.partition("\n\n")[0]
    assert json.loads(copy.gpubed("count", "lab", "--json"))["nodes"] == 3


def test_a_check(copy):
    """The session is a STAND-IN."""
    code = """
from gpubed.checks import registry
[check] = [function for function in registry.functions() if function.__name__ == "uptime"]
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
