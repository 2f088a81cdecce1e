"""README, tutorial and how-to pages, typed as they are written: `make test-nightly PARTS=walk`.

Once per way: as root and as an ordinary user, in terminals of 80 and of 200 columns and
without one; and as root below a folder of an odd name, in the locale C. Each way begins with
a clone of what is committed, and ends with nothing left.
`walk.yaml` says how each block is walked, or why it is not.
"""

import itertools
import os
import re
import shlex
import shutil
import subprocess
import uuid
from pathlib import Path

import pytest
import yaml

from support import blocks, terminal
from support.cluster import ROOT, labelled

pytestmark = [pytest.mark.walk, pytest.mark.e2e, pytest.mark.docker, pytest.mark.timeout(3600)]
COLUMNS = {"80": 80, "200": 200, "none": None}
ALL = [f"{user}-{columns}" for user, columns in itertools.product(("root", "user"), COLUMNS)]
ALL.append("odd-none")
WAYS = os.environ.get("WAYS", "").split() or ALL
OF_THE_TESTS = {"GPUBED_ROOT", "PYTHONPATH", "VIRTUAL_ENV", "WAYS"}
OURS = {"gpubed", ".venv/bin/gpubed", "make"}
FIRST = blocks.blocks("README.md")[0]
STEPS = [
    pytest.param(block, how, id=str(block))
    for page in blocks.PAGES
    for block, (_, how) in zip(blocks.blocks(page), blocks.table()[page], strict=True)
]


class Person:
    """Somebody who types, in a folder of their own."""

    def __init__(self, home, user, columns):
        self.home, self.user, self.columns = home, user, columns
        self.cwd = home
        # Folders of whoever runs the tests are not for somebody else.
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in OF_THE_TESTS and not (user and name.startswith("XDG_"))
        }
        path = f"{home}/gpubed/.venv/bin:{os.environ['PATH']}"
        # No page is to open in a browser of this machine; true stands for one.
        self.environment = {**kept, "PATH": path, "BROWSER": "true %s"}
        if user:
            self.environment |= {"HOME": str(home), "USER": user, "LOGNAME": user}

    @property
    def project(self):
        return self.home / "gpubed"

    def types(self, line, **options):
        """Run a line where the one before left off; returns what it said."""
        where = self.home / ".cwd"
        # A shell for each line; only the folder is carried on, as the pages need it.
        script = f"trap 'pwd > {shlex.quote(str(where))}' EXIT\n{line}"
        words = ["bash", "-c", script]
        if self.user:
            words = ["runuser", "-u", self.user, "--", *words]
        said = terminal.run(
            words, columns=self.columns, cwd=self.cwd, env=self.environment, **options
        )
        self.cwd = Path(where.read_text().strip())
        return said

    def writes(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if self.user:
            shutil.chown(path, self.user)
            shutil.chown(path.parent, self.user)

    def is_up(self, cluster):
        return (self.project / ".gpubed" / cluster / "allocation.json").exists()


@pytest.fixture(scope="module", params=WAYS)
def person(docker, request, tmp_path_factory):
    """Somebody with a repository to clone; all that they made is removed at the end."""
    user, columns = request.param.split("-")
    if os.geteuid() != 0:
        pytest.skip("only root can be root, and another user")
    assert labelled("lab") == [], "the pages make a cluster lab, and there is one"
    odd = user == "odd"
    if user in ("root", "odd"):
        home, user = tmp_path_factory.mktemp("walk"), None
        home = home / "my project 100% ü" if odd else home
    else:
        user = f"walk{uuid.uuid4().hex[:6]}"
        subprocess.run(["useradd", "--create-home", "--groups", "docker", user], check=True)
        home = Path("~" + user).expanduser()
    source = home / "source" / "gpubed"
    subprocess.run(["git", "clone", "-q", "--bare", f"file://{ROOT}", source], check=True)
    if user:
        subprocess.run(["chown", "-R", f"{user}:", source.parent], check=True)
    walker = Person(home, user, COLUMNS[columns])
    if odd:
        walker.environment["LC_ALL"] = "C"
    try:
        yield walker
    finally:
        walker.columns, walker.cwd = None, walker.project
        for cluster in sorted(walker.project.glob("inventories/*")):
            walker.types(f"gpubed down {cluster.name} -y")
        if user:
            # SSH keeps its connections open for a while.
            subprocess.run(["pkill", "-KILL", "-u", user], check=False)
            subprocess.run(["userdel", "--remove", user], check=True, capture_output=True)
    assert labelled("lab") == []


@pytest.mark.parametrize(("block", "how"), STEPS)
def test_a_block(person, block, how, request):
    for reason in {"by", "skip"} & set(how):
        pytest.skip(f"{block}: {'done by ' if reason == 'by' else ''}{how[reason]}")
    if "once" in how and "root-80" not in request.node.name:
        pytest.skip(f"{block}: walked as root on 80 columns only: {how['once']}")
    prepare(person, block, how)
    for command in block.commands:
        follow(person, command, how)


def prepare(person, block, how):
    """Do what the page says between the commands, or takes for done."""
    if not person.project.exists() and str(block) != str(FIRST):
        for command in FIRST.commands:
            follow(person, command, {})
    words = " ".join([*(command.words for command in block.commands), how.get("through", "")])
    if " lab" in words and "make" not in words and not person.is_up("lab"):
        assert person.types("gpubed up lab").code == 0
    spec = person.project / "inventories/lab/cluster.yml"
    if "edit" in how:
        old, new = how["edit"]
        assert spec.read_text().count(old) == 1
        person.writes(spec, spec.read_text().replace(old, new))
    if "yaml" in how:
        write(person, block.above, spec)
    if "before" in how:
        assert person.types(how["before"]).code == 0


def write(person, text, spec):
    """Write what a page shows into the file that it names, else beside what cluster.yml has."""
    if named := re.match(r"# (\S+\.yml)\n", text):
        person.writes(person.project / named[1], text)
        return
    document = yaml.safe_load(spec.read_text())
    for key, value in yaml.safe_load(text).items():
        document.setdefault(key, {}).update(value)
    person.writes(spec, yaml.safe_dump(document, sort_keys=False))


def follow(person, command, how):
    """Type a command; it must end, and look, as the page promises."""
    line = command.text.replace(
        "<this repository>", shlex.quote(str(person.home / "source/gpubed"))
    )
    name = shlex.split(command.words)[0]
    opens_shell = re.search(r"ssh\b.* head$", command.words)
    if "through" in how and name not in OURS:
        line = f"{how['through']} {shlex.quote(command.words)}"
    stays = "interrupt" in how and "--tunnel" in command.words
    said = person.types(
        line,
        typed=how.get("type", "") if opens_shell else "",
        interrupt=how["interrupt"] if stays else None,
    )
    expected = how.get("ends", {}).get(command.words, [0])
    if stays:
        expected = [130]
    elif how.get("refused") and person.columns is None and "down" in command.words:
        expected = [2]
    assert said.code in expected, f"{line} ended with {said.code}\n{said.text}"
    ours = name in OURS and not command.words.startswith("gpubed ssh ")  # a node's program said it
    assert said.faults(ours=ours) == [], f"{line}\n{said.text}"
    if not how.get("example"):
        assert command.missing(said.text) == [], f"{line}\n{said.text}"
